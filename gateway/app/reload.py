"""The configuration read again while the gateway runs: applied whole, or not at all.

A new application is built around the fleet that goes on; requests under way keep the one with which they
began, and those that wait move with the queue. What only a new process can change is named, not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.admin.orders import Operations, ReloadReport
from slotgate.gateway.app.application import build_app
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.settings import BackendSettings, Settings, check_isolation_goes_on

__all__ = ["OF_THE_PROCESS", "LiveGateway", "Load"]

Load = Callable[[], Settings]
"""Reads the configuration. Raises `SettingsError` with all its faults."""
OF_THE_PROCESS = (
    "server.host",
    "server.port",
    "server.keep_alive_s",
    "server.header_timeout_s",
    "server.max_header_bytes",
    "server.max_connections",
    "server.drain_delay_s",
    "server.shutdown_grace_s",
    "server.tls_cert",
    "server.tls_key",
    "admission.store",
    "usage.store",
)
log = structlog.stdlib.get_logger(__name__)


class LiveGateway:
    """An ASGI application whose settings can be exchanged."""

    def __init__(
        self,
        settings: Settings,
        parts: Composition,
        identities_of: Callable[[Settings], Identities],
        *,
        written: Settings | None = None,
        load: Load | None = None,
    ) -> None:
        """`written` are the settings as they stand in the file, with commands where `settings` has the URLs
        of processes. Without `load` there is nothing to read again.
        """
        self._settings = settings
        self._began_with = written or settings
        """What the process was started with, however often it has been read again since."""
        self._parts = parts
        self._identities_of = identities_of
        self._load = load
        self._turn = asyncio.Lock()
        identities = identities_of(settings)
        self._app = self._built(settings, identities)
        self._parts.console.operators.change(identities.is_operator)

    def __repr__(self) -> str:
        return f"<LiveGateway {self._parts!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def reload(self) -> ReloadReport:
        """Raises `SettingsError`; then everything is as it was."""
        assert self._load is not None
        async with self._turn:
            written = await asyncio.to_thread(self._load)
            settings, fixed = self._beside_processes(written)
            check_isolation_goes_on(self._began_with, settings)
            identities = self._identities_of(settings)
            app = self._built(settings, identities)
            fixed += [key for key in OF_THE_PROCESS if _value(written, key) != _value(self._began_with, key)]
            self._parts.runtime.apply(settings)
            self._app, self._settings = app, settings
            self._parts.console.operators.change(identities.is_operator)
            report = ReloadReport(tuple(fixed), self._parts.runtime.in_flight.revoke(identities.is_valid))
        log.info("configuration reloaded", needs_restart=report.needs_restart, revoked=report.revoked)
        return report

    def _beside_processes(self, written: Settings) -> tuple[Settings, list[str]]:
        """The settings with the processes that run, as they run, and what of them would need other ones."""
        run, wanted = _commands(self._began_with), _commands(written)
        fixed = [f"backend.{name}" for name in sorted({*run, *wanted}) if run.get(name) != wanted.get(name)]
        if written.groups != self._began_with.groups:
            fixed.append("group")
        ours = [entry for entry in self._settings.backends if entry.name in run]
        others = [entry for entry in written.backends if not entry.command and entry.name not in run]
        return written.model_copy(update={"backends": (*ours, *others)}), fixed

    def _built(self, settings: Settings, identities: Identities) -> ASGIApp:
        operations = Operations(self._parts.loader, self.reload if self._load is not None else None)
        return build_app(settings, self._parts, identities, operations)


def _commands(settings: Settings) -> dict[str, BackendSettings]:
    return {entry.name: entry for entry in settings.backends if entry.command}


def _value(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)
