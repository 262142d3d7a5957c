"""`slotgate serve`: runs the gateway as a process, from its settings to the last closed connection."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import uvloop

from slotgate.gateway.app.allocator import give_back_large_blocks
from slotgate.gateway.app.application import RESERVED_PATHS
from slotgate.gateway.app.composition import Composition, RequestObserver
from slotgate.gateway.app.reload import LiveGateway, Load
from slotgate.gateway.auth.identity import identities_of
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.server.listener import Listener, ListenError
from slotgate.gateway.server.open_files import allow_connections
from slotgate.gateway.server.signals import stop_signals
from slotgate.gateway.settings import ServerSettings, Settings, SettingsError
from slotgate.gateway.telemetry.logs import configure_logging
from slotgate.gateway.telemetry.tracing import BeginTrace, traced
from slotgate.gateway.usage import StoreFault, UsageLedger, open_ledger

__all__ = ["ServeHooks", "assemble", "serve"]


CANNOT_LISTEN = 2
CANNOT_RECORD = 2
log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeHooks:
    """Functions that `serve` calls while it starts."""

    started: Callable[[], Awaitable[None]] | None = None
    """Awaited after the processes have been started and before the gateway listens."""
    listening: Callable[[], None] | None = None
    """Called when the gateway listens."""


def serve(
    settings: Settings,
    processes: ManagedProcesses | None = None,
    hooks: ServeHooks | None = None,
    load: Load | None = None,
) -> int:
    """Run until a signal stops it. Return the exit code: 0, or 2 if listening or the usage store fails.

    `load` reads the configuration again, at SIGHUP and when an operator reloads it.
    `processes` are the llama-servers behind backends with a command; by default `settings` define them.
    Raises the exceptions of `hooks.started`.
    """
    configure_logging()
    give_back_large_blocks()
    try:
        uvloop.run(
            _serve(
                settings, processes or ManagedProcesses.of(settings, os.environ), hooks or ServeHooks(), load
            )
        )
    except ListenError as error:
        print(error, file=sys.stderr)
        return CANNOT_LISTEN
    except StoreFault as fault:
        print(f"usage.store: {fault}", file=sys.stderr)
        return CANNOT_RECORD
    return 0


def _within_open_files(server: ServerSettings) -> ServerSettings:
    """Return the settings with as many connections as this process may have open files for."""
    return server.model_copy(update={"max_connections": allow_connections(server.max_connections)})


async def _serve(
    settings: Settings, processes: ManagedProcesses, hooks: ServeHooks, load: Load | None
) -> None:
    async with open_ledger(settings.usage) as usage, traced(os.environ) as trace, processes:
        if hooks.started is not None:
            await hooks.started()
        with stop_signals() as stop:
            located, environ = processes.located(settings), processes.environ(os.environ)
            assembled = assemble(
                located, environ, usage, written=settings, load=load, processes=processes, trace=trace
            )
            async with assembled as (app, parts):
                hangups = asyncio.get_running_loop().create_task(_reload_at_hangup(app, load))
                server = Listener(app, _within_open_files(settings.server), reserve_for=RESERVED_PATHS)
                await server.listen()
                log.info("listening", url=server.url)
                _relax_garbage_collector()
                if hooks.listening is not None:
                    hooks.listening()
                await stop.wait()
                hangups.cancel()
                log.info("draining", grace_s=settings.server.shutdown_grace_s)
                await server.drain(refuse=parts.drain, cancel=parts.runtime.cancel_running)
    log.info("stopped")


async def _reload_at_hangup(app: LiveGateway, load: Load | None) -> None:
    """Reload at each SIGHUP, the usual signal for daemons. Faults are logged and nothing changes."""
    hangup = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    try:
        while await hangup.wait():
            hangup.clear()
            if load is None:
                log.warning("nothing to reload: this gateway runs without a configuration file")
                continue
            try:
                await app.reload()
            except SettingsError as error:
                log.error("configuration not reloaded", faults=str(error))
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _relax_garbage_collector() -> None:
    """Make the garbage collector skip the objects that exist now, and run less often.

    These objects live as long as the process. Requests leave few reference cycles and frames none, but the
    collector counts every allocation. In measurements this saves a tenth of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@asynccontextmanager
async def assemble(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    usage: UsageLedger | None = None,
    *,
    written: Settings | None = None,
    load: Load | None = None,
    processes: ManagedProcesses | None = None,
    trace: BeginTrace | None = None,
    observers: Iterable[RequestObserver] = (),
) -> AsyncIterator[tuple[LiveGateway, Composition]]:
    """Start the application and its parts in the running event loop, and stop them after the block.

    `processes` are the llama-servers behind some of the backends; `settings` have their URLs. `written` are
    the settings as the file has them, with commands in place of these URLs.
    """
    parts = Composition(
        settings, environ, usage=usage, trace=trace, processes=processes or (), observers=observers
    )
    app = LiveGateway(settings, parts, identities_of, written=written, load=load, processes=processes)
    if processes is not None:
        processes.report_to(parts.runtime.fleet.backends)
    parts.start()
    try:
        yield app, parts
    finally:
        app.close()
        await parts.stop()
