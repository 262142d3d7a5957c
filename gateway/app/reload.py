"""Reload: reads the configuration again while the gateway runs. All of it is applied, or nothing.

A new application is built around the existing fleet; `process_reload` looks after backends with a command.
Live requests keep the application that they began with, and waiting requests stay in the queue. Settings that
need a new process of the gateway are reported and not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.admin.actions import OperatorActions, ReloadReport
from slotgate.gateway.app.application import build_app
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.app.process_reload import ProcessChanges, ProcessReload
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.settings import Settings

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
        processes: ManagedProcesses | None = None,
    ) -> None:
        """Build the first application.

        `written` are the settings as the file has them: with commands, where `settings` has the URLs of the
        `processes`. Without `load` there is no file to read again.
        """
        self._settings = settings
        self._started_with = self._written = written or settings
        """The file's settings when the process started, which reloads do not change, and the latest ones."""
        self._parts = parts
        self._identities_of = identities_of
        self._load = load
        self._managed = processes or ManagedProcesses(())
        self._processes = ProcessReload(self._managed, self._started_with, settings, self._process_ended)
        self._reload_lock = asyncio.Lock()
        self._closed = False
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
            identities = self._identities_of(written)
            changes = self._apply(written, identities)
            needs_restart = [
                key for key in NEEDS_RESTART if _value(written, key) != _value(self._started_with, key)
            ]
            report = ReloadReport(
                needs_restart=(*changes.needs_restart, *needs_restart),
                next_load=changes.next_load,
                revoked=self._parts.runtime.in_flight.revoke(identities.is_valid),
            )
        log.info(
            "configuration reloaded",
            needs_restart=report.needs_restart,
            next_load=report.next_load,
            revoked=report.revoked,
        )
        return report

    def _apply(self, written: Settings, identities: Identities) -> ProcessChanges:
        """Use the settings of the file from now on, as far as the running processes allow."""
        changes = self._processes.merge(written)
        parts, settings = self._parts, changes.settings
        app = self._build(settings, identities)
        parts.runtime.fleet.add_keys(self._managed.environ({}))
        parts.runtime.apply(settings)
        parts.loader.configure(settings, self._managed)
        self._managed.report_to(parts.runtime.fleet.backends, changes.started)
        for entry in written.backends:
            if entry.name in changes.started and entry.load == "start":
                parts.loader.load_new(entry.name)
        self._app, self._settings, self._written = app, settings, written
        parts.console.operators.change(identities.is_operator)
        return changes

    def close(self) -> None:
        """Take no more changes, because the gateway ends."""
        self._closed = True

    def _process_ended(self) -> None:
        """Use the changed settings of a backend soon, because its next process will have the new command.

        Not at once: this is called by the task that supervises the process, which no error may end.
        """
        asyncio.get_running_loop().call_soon(self._apply_again)

    def _apply_again(self) -> None:
        if not self._closed:
            try:
                self._apply(self._written, self._identities_of(self._written))
            except Exception:
                log.exception("internal error")

    def _build(self, settings: Settings, identities: Identities) -> ASGIApp:
        actions = OperatorActions(self._parts.loader, self.reload if self._load is not None else None)
        return build_app(settings, self._parts, identities, actions)


def _value(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)
