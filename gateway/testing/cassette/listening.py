"""Serves a recorder or a player: inside the running event loop, or as a process until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import uvloop
from starlette.types import ASGIApp

from slotgate.gateway.server.listener import Listener, ListenError
from slotgate.gateway.server.signals import stop_signals
from slotgate.gateway.settings import ServerSettings
from slotgate.gateway.telemetry.logs import configure_logging
from slotgate.gateway.testing.cassette.cassette import Cassette, CassetteError
from slotgate.gateway.testing.cassette.guarded import guarded
from slotgate.gateway.testing.cassette.player import Player
from slotgate.gateway.testing.cassette.recorder import Recorder, UpstreamFault

__all__ = ["listening", "record", "replay"]

FAULT = 2
GRACE_S = 2
"""Time that running exchanges get to end when the process is told to stop."""
log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def listening(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the app inside the block. Yields the URL; port 0 takes a free port.

    At the end of the block, running exchanges get `GRACE_S` to end. Raises `ListenError`.
    """
    server = Listener(app, ServerSettings(host=host, port=port, shutdown_grace_s=GRACE_S))
    await server.listen()
    try:
        yield server.url
    finally:
        await server.drain()


def record(upstream: str, folder: Path, host: str, port: int, api_key: str | None) -> int:
    """Run `slotgate record` until a signal comes. Return the exit code."""

    async def run() -> None:
        async with Recorder(upstream, folder, api_key=api_key) as recorder:
            await _until_stopped(recorder, host, port, f"records {upstream} into {folder}")
            log.info("stopped", recorded=recorder.kept)

    return _exit_code(run())


def replay(folder: Path, host: str, port: int, speed: float) -> int:
    """Run `slotgate replay` until a signal comes. Return the exit code."""

    async def run() -> None:
        cassette = Cassette.load(folder)
        player = Player(cassette, speed=speed)
        await _until_stopped(player, host, port, f"plays {len(cassette)} recordings of {folder}")
        log.info("stopped", played=player.played.total(), misses=len(player.misses))

    return _exit_code(run())


async def _until_stopped(app: ASGIApp, host: str, port: int, what: str) -> None:
    with stop_signals() as stop:
        async with listening(guarded(app, host), host, port) as url:
            print(f"{url} {what}", flush=True)
            await stop.wait()


def _exit_code(run: Coroutine[Any, Any, None]) -> int:
    configure_logging()
    try:
        uvloop.run(run)
    except (CassetteError, UpstreamFault, ListenError) as error:
        print(error, file=sys.stderr)
        return FAULT
    return 0
