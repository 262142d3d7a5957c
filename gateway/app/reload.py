"""Reload: reads the configuration again while the gateway runs. All of it is applied, or nothing.

A new application is built around the existing fleet. Live requests keep the application that they began with,
and waiting requests stay in the queue. Settings that need a new process are reported and not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.admin.actions import OperatorActions, ReloadReport
from slotgate.gateway.app.application import build_app
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.settings import BackendSettings, Settings, check_isolation_goes_on

__all__ = ["NEEDS_RESTART", "LiveGateway", "Load"]

Load = Callable[[], Settings]
"""Reads the configuration. Raises `SettingsError` with all its faults."""
NEEDS_RESTART = (
    "server.host",
    "server.port",
    "server.keep_alive_s",
    "server.header_timeout_s",
    "server.max_header_bytes",
    "server.max_connections",
    "server.max_connections_per_address",
    "server.drain_delay_s",
    "server.shutdown_grace_s",
    "server.tls_cert",
    "server.tls_key",
    "admission.store",
    "usage.store",
)
"""Settings that take effect only after a restart."""
log = structlog.stdlib.get_logger(__name__)


class LiveGateway:
    """An ASGI application whose configuration can be replaced while it runs."""

    def __init__(
        self,
        settings: Settings,
        parts: Composition,
        identities_of: Callable[[Settings], Identities],
        *,
        written: Settings | None = None,
        load: Load | None = None,
    ) -> None:
        """Build the first application.

        `written` are the settings as the file has them: with commands, where `settings` has the URLs of the
        processes. Without `load` there is no file to read again.
        """
        self._settings = settings
        self._started_with = written or settings
        """The file's settings when the process started. Reloads do not change them."""
        self._parts = parts
        self._identities_of = identities_of
        self._load = load
        self._reload_lock = asyncio.Lock()
        identities = identities_of(settings)
        self._app = self._build(settings, identities)
        self._parts.console.operators.change(identities.is_operator)

    def __repr__(self) -> str:
        return f"<LiveGateway {self._parts!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def reload(self) -> ReloadReport:
        """Read the configuration and apply it. If it has faults, change nothing and raise `SettingsError`."""
        assert self._load is not None
        async with self._reload_lock:
            written = await asyncio.to_thread(self._load)
            settings, needs_restart = self._with_running_processes(written)
            check_isolation_goes_on(self._started_with, settings)
            identities = self._identities_of(settings)
            app = self._build(settings, identities)
            needs_restart += [
                key for key in NEEDS_RESTART if _value(written, key) != _value(self._started_with, key)
            ]
            self._parts.runtime.apply(settings)
            self._app, self._settings = app, settings
            self._parts.console.operators.change(identities.is_operator)
            report = ReloadReport(
                tuple(needs_restart), self._parts.runtime.in_flight.revoke(identities.is_valid)
            )
        log.info("configuration reloaded", needs_restart=report.needs_restart, revoked=report.revoked)
        return report

    def _with_running_processes(self, written: Settings) -> tuple[Settings, list[str]]:
        """Return the new settings with the running processes unchanged, and the keys that need a restart."""
        running, wanted = _commands(self._started_with), _commands(written)
        needs_restart = [
            f"backend.{name}" for name in sorted({*running, *wanted}) if running.get(name) != wanted.get(name)
        ]
        if written.groups != self._started_with.groups:
            needs_restart.append("group")
        ours = [entry for entry in self._settings.backends if entry.name in running]
        others = [entry for entry in written.backends if not entry.command and entry.name not in running]
        return written.model_copy(update={"backends": (*ours, *others)}), needs_restart

    def _build(self, settings: Settings, identities: Identities) -> ASGIApp:
        actions = OperatorActions(self._parts.loader, self.reload if self._load is not None else None)
        return build_app(settings, self._parts, identities, actions)


def _commands(settings: Settings) -> dict[str, BackendSettings]:
    return {entry.name: entry for entry in settings.backends if entry.command}


def _value(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)
