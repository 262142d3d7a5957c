"""`slotgate serve`: the gateway as a process, from settings to the last closed connection."""

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

from slotgate.gateway.app.composition import Composition, RequestObserver
from slotgate.gateway.app.reload import LiveGateway, Load
from slotgate.gateway.auth.identity import identities_of
from slotgate.gateway.processes.managed import ManagedProcesses
from slotgate.gateway.server.listener import Listener, ListenError
from slotgate.gateway.server.open_files import allow_connections
from slotgate.gateway.server.signals import stop_signals
from slotgate.gateway.settings import Settings, SettingsError
from slotgate.gateway.telemetry.logs import configure_logging
from slotgate.gateway.telemetry.tracing import BeginTrace, traced
from slotgate.gateway.usage import StoreFault, UsageLedger, open_ledger

__all__ = ["ServeHooks", "assemble", "serve"]


CANNOT_LISTEN = 2
CANNOT_RECORD = 2
log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeHooks:
    """What is done on the way up: `started` is awaited when the children have been started and before
    anybody is served, `listening` is called when everybody is."""

    started: Callable[[], Awaitable[None]] | None = None
    listening: Callable[[], None] = lambda: None


def serve(
    settings: Settings,
    children: ManagedProcesses | None = None,
    hooks: ServeHooks | None = None,
    load: Load | None = None,
) -> int:
    """Run until told to stop. Returns the exit code: 0, or 2 if the address cannot be listened on or
    the records of usage cannot be kept.

    `load` reads the configuration again, at SIGHUP and for an operator who asks.
    `children` are the processes behind the backends with a command; left out, the settings say what to run.
    Raises what `hooks.started` raises.
    """
    configure_logging()
    allow_connections(settings.server.max_connections)
    try:
        uvloop.run(
            _serve(
                settings, children or ManagedProcesses.of(settings, os.environ), hooks or ServeHooks(), load
            )
        )
    except ListenError as error:
        print(error, file=sys.stderr)
        return CANNOT_LISTEN
    except StoreFault as fault:
        print(f"usage.store: {fault}", file=sys.stderr)
        return CANNOT_RECORD
    return 0


async def _serve(
    settings: Settings, children: ManagedProcesses, hooks: ServeHooks, load: Load | None
) -> None:
    async with open_ledger(settings.usage) as usage, traced(os.environ) as trace, children:
        if hooks.started is not None:
            await hooks.started()
        with stop_signals() as stop:
            located, environ = children.located(settings), children.environ(os.environ)
            assembled = assemble(
                located, environ, usage, written=settings, load=load, children=children, trace=trace
            )
            async with assembled as (app, parts):
                hangups = asyncio.get_running_loop().create_task(_reload_at_hangup(app, load))
                server = Listener(app, settings.server)
                await server.listen()
                log.info("listening", url=server.url)
                _settle_the_collector()
                hooks.listening()
                await stop.wait()
                hangups.cancel()
                log.info("draining", grace_s=settings.server.shutdown_grace_s)
                await server.drain(refuse=parts.drain, cancel=parts.runtime.cancel_running)
    log.info("stopped")


async def _reload_at_hangup(app: LiveGateway, load: Load | None) -> None:
    """SIGHUP, as daemons have it: the configuration is read again. Faults are logged, and nothing changes."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    try:
        while await asked.wait():
            asked.clear()
            if load is None:
                log.warning("nothing to reload: this gateway runs without a configuration file")
                continue
            try:
                await app.reload()
            except SettingsError as error:
                log.error("configuration not reloaded", faults=str(error))
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _settle_the_collector() -> None:
    """What is there now stays for the life of the process: the garbage collector need not look at it again
    and again. Requests leave few cycles, frames none, but each is counted. A tenth of the CPU, measured."""
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
    children: ManagedProcesses | None = None,
    trace: BeginTrace | None = None,
    observers: Iterable[RequestObserver] = (),
) -> AsyncIterator[tuple[LiveGateway, Composition]]:
    """The application and its parts in the running event loop. Nothing is left when the block is left.

    `children` are the processes behind some of the backends; `settings` say where they are. `written` are the
    settings as the file has them, with commands in place of these processes' URLs.
    """
    parts = Composition(
        settings, environ, usage=usage, trace=trace, processes=children or (), observers=observers
    )
    app = LiveGateway(settings, parts, identities_of, written=written, load=load)
    if children is not None:
        children.follow(parts.runtime.fleet.monitors)
    parts.start()
    try:
        yield app, parts
    finally:
        await parts.stop()
