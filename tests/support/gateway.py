"""Runs the gateway under test: the real application and the real server, on port 0, in this event loop.

Leaving the block checks the invariants that hold after every request, however it ended: no lease, no ticket,
only idle upstream connections, no new task, and no error in the log. A client that leaves and a backend that
fails are not errors of the gateway.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson

from slotgate.gateway.app.application import RESERVED_PATHS
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.app.reload import LiveGateway, Load
from slotgate.gateway.app.serve import assemble
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.server.listener import Listener
from slotgate.gateway.settings import Settings, parse
from slotgate.gateway.telemetry.tracing import BeginTrace
from slotgate.gateway.usage import UsageLedger
from tests.support.answer import WholeResponse, fetch
from tests.support.client import Frame, RawClient
from tests.support.logged import Log, logged

CHAT = "/v1/chat/completions"
SETTLED_WITHIN_S = 10.0


def chat(text: str = "hi", **members: object) -> dict[str, Any]:
    """Return a chat request. It streams unless `stream=False`."""
    return {"messages": [{"role": "user", "content": text}], "stream": True, **members}


async def ask(url: str, *headers: bytes, **members: object) -> WholeResponse:
    """Send a chat request and return the whole response, which is not a stream."""
    return await fetch(url, "POST", CHAT, *headers, json=chat() | members)


def data_of(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """Return the parsed chunks of a stream, without comments and the sentinel."""
    return [orjson.loads(frame.data[6:]) for frame in frames if frame.data.startswith(b"data: {")]


def text_of(frames: Sequence[Frame]) -> str:
    """Return the whole content of a stream."""
    deltas = [choice["delta"] for chunk in data_of(frames) for choice in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def error_in(frames: Sequence[Frame]) -> dict[str, Any]:
    """Return the error in the last frame of a stream, after checking that there is no sentinel."""
    assert not any(b"[DONE]" in frame.data for frame in frames), frames
    errors = [chunk["error"] for chunk in data_of(frames) if "error" in chunk]
    assert len(errors) == 1, frames
    assert b'"error"' in frames[-1].data, frames
    error: dict[str, Any] = errors[0]
    return error


def settings_for(
    *urls: str,
    environ: Mapping[str, str] | None = None,
    **sections: Any,  # noqa: ANN401
) -> Settings:
    """Return settings with a backend for each URL, all with model `m`. `sections` are as in the file."""
    backends = [
        {"name": f"gpu{number}", "url": url, "models": ["m"], "health_interval_s": 0.2}
        for number, url in enumerate(urls)
    ]
    return parse(
        {"server": {"port": 0}, "backend": backends, "usage": {"store": "none"}, **sections}, environ or {}
    )


class Gateway:
    """A running gateway, with its parts for inspection."""

    def __init__(self, server: Listener, parts: Composition, log: Log, app: LiveGateway) -> None:
        self.server = server
        self.app = app
        self.parts = parts
        self.fleet = parts.runtime.fleet
        self.scheduler = parts.runtime.scheduler
        self.in_flight = parts.runtime.in_flight
        self.limiter = parts.runtime.limiter
        self.log = log
        self.url = server.url

    @property
    def idle(self) -> bool:
        scheduler = self.scheduler
        leased = sum(backend.pool.leased for backend in self.fleet.backends.values())
        return scheduler.depth == 0 and leased == 0 and not scheduler.leases

    async def until(self, condition: Callable[[], object], within: float = SETTLED_WITHIN_S) -> None:
        """Wait until the condition holds. It is checked every millisecond."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not condition():
            assert loop.time() < end, f"not within {within} s: {self.fleet!r}, {self.scheduler!r}"
            await asyncio.sleep(0.001)

    async def client(self, **options: int) -> RawClient:
        return await RawClient.connect(self.url, **options)


@asynccontextmanager
async def running_gateway(
    settings: Settings,
    *,
    ready: bool = True,
    load: Load | None = None,
    usage: UsageLedger | None = None,
    environ: Mapping[str, str] = os.environ,
    trace: BeginTrace | None = None,
) -> AsyncIterator[Gateway]:
    """Run a gateway. Backends with a command become its processes, as in `slotgate serve`."""
    before = asyncio.all_tasks()
    with logged() as log:
        async with _listening(settings, log, load, environ, usage, trace=trace) as gateway:
            if ready:
                await gateway.until(lambda: gateway.fleet.ready)
            yield gateway
        await gateway.until(lambda: not (asyncio.all_tasks() - before - _streams()))
    assert not log.errors, log.errors


@asynccontextmanager
async def _listening(
    settings: Settings,
    log: Log,
    load: Load | None,
    environ: Mapping[str, str],
    usage: UsageLedger | None,
    *,
    trace: BeginTrace | None,
) -> AsyncIterator[Gateway]:
    own = [backend for backend in settings.backends if backend.command]
    async with AsyncExitStack() as stack:
        children = await stack.enter_async_context(ManagedProcesses.of(settings, environ)) if own else None
        located = children.located(settings) if children else settings
        environ = children.environ(environ) if children else environ
        assembled = assemble(
            located, environ, usage, written=settings, load=load, processes=children, trace=trace
        )
        app, parts = await stack.enter_async_context(assembled)
        server = Listener(app, settings.server, reserve_for=RESERVED_PATHS)
        await server.listen()
        gateway = Gateway(server, parts, log, app)
        try:
            yield gateway
            await gateway.until(lambda: gateway.idle)
            await gateway.until(lambda: not server.connections.tasks)
        finally:
            server.close()
            await asyncio.sleep(0)
        await gateway.until(
            lambda: all(b.transport.connections == b.transport.idle for b in gateway.fleet.backends.values())
        )


def _streams() -> set[asyncio.Task[Any]]:
    """Return the tasks that asyncio's stream server keeps for a moment after a close."""
    return {task for task in asyncio.all_tasks() if "StreamReaderProtocol" in repr(task.get_coro())}
