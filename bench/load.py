"""The measurements: the load that a gateway gets, and the values that are read.

Each measurement runs against any target, a gateway or the upstream itself, and leaves no stream behind.
Endless streams are ended normally by the upstream, because a disconnect of the client would cause extra work
in the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import TypeVar

from bench.accounting import Usage
from bench.stream import Client, StreamExchange, Tally, Target, chat, post

__all__ = ["PacedRun", "first_tokens", "fixed", "paced", "saturated", "slow"]

T = TypeVar("T")
_PATIENCE_S = 20.0
_DRAIN_S = 3.0


@dataclass(frozen=True, slots=True)
class PacedRun:
    tokens: int
    usage: Usage
    latencies_ns: Sequence[int]

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per token."""
        return self.usage.ran_ns / max(self.tokens, 1) / 1e3

    @property
    def wait_us(self) -> float:
        """Microseconds per token during which another program had the core."""
        return self.usage.waited_ns / max(self.tokens, 1) / 1e3


async def paced(
    target: Target,
    upstream: Target,
    usage: Callable[[], Usage],
    *,
    streams: int,
    pace: int,
    settle_s: float,
    window_s: float,
) -> PacedRun:
    """Measure CPU and latency of a token while many streams run at the speed of a model."""
    tally = Tally()
    async with _streams(target, upstream, tally, count=streams, pace=pace):
        await asyncio.sleep(settle_s)
        tally.recording = True
        tokens, spent = tally.tokens, usage()
        await asyncio.sleep(window_s)
        tokens, spent = tally.tokens - tokens, usage() - spent
        tally.recording = False
    return PacedRun(tokens, spent, tally.latencies_ns)


async def saturated(
    target: Target, upstream: Target, *, streams: int, settle_s: float, window_s: float
) -> float:
    """Measure the tokens per second of all streams together at full speed."""
    tally = Tally()
    async with _streams(target, upstream, tally, count=streams, pace=0):
        await asyncio.sleep(settle_s)
        tokens, began = tally.tokens, monotonic_ns()
        await asyncio.sleep(window_s)
        return (tally.tokens - tokens) / (monotonic_ns() - began) * 1e9


async def first_tokens(
    target: Target, *, requests: int, limit_s: float, text: str = "pace=0 tokens=4", pause_s: float = 0.0
) -> list[int]:
    """Measure the nanoseconds from each request to its first token, one after another on kept connections.

    A real llama-server closes the connection after each stream, although its headers announce keep-alive.
    With a pause the client sees the close before it sends the next request.
    """
    took: list[int] = []
    client = await Client.connect(target, Tally())
    deadline = monotonic_ns() + limit_s * 1e9
    while len(took) < requests and (not took or monotonic_ns() < deadline):
        if not client.usable:
            client.close()
            client = await Client.connect(target, Tally())
        began = monotonic_ns()
        exchange = client.ask(chat(target, text, max_tokens=4))
        took.append(await _soon(exchange.first_token) - began)
        await _soon(exchange.over)
        if pause_s:
            await asyncio.sleep(pause_s)
    client.close()
    return took


async def slow(
    target: Target, upstream: Target, memory: Callable[[], int], *, counts: Sequence[int]
) -> list[int]:
    """Measure the resident bytes: without streams, then with streams of one token per second."""
    seen = [memory()]
    async with contextlib.AsyncExitStack() as opened:
        running = 0
        for count in counts:
            more = _streams(target, upstream, Tally(), count=count - running, pace=1)
            await opened.enter_async_context(more)
            running = count
            await asyncio.sleep(1)
            seen.append(memory())
    return seen


async def fixed(target: Target, *, streams: int, tokens: int) -> float:
    """Measure the tokens per second of streams that a real model generates to a given length."""
    clients = [await Client.connect(target, Tally()) for _ in range(streams)]
    try:
        began = monotonic_ns()
        asked = [client.ask(chat(target, "Tell a long story.", max_tokens=tokens)) for client in clients]
        async with asyncio.timeout(60):
            await asyncio.gather(*(exchange.over for exchange in asked))
        return streams * tokens / (monotonic_ns() - began) * 1e9
    finally:
        for client in clients:
            client.close()


# -- streams


@asynccontextmanager
async def _streams(
    target: Target, upstream: Target, tally: Tally, *, count: int, pace: int
) -> AsyncIterator[None]:
    """Run streams during the block. Each has had its first token when the block begins."""
    clients: list[Client] = []
    asked: list[StreamExchange] = []
    try:
        for _ in range(count):
            clients.append(await Client.connect(target, tally))
            asked.append(clients[-1].ask(chat(target, f"pace={pace} tokens=0")))
        await asyncio.gather(*(_soon(exchange.first_token) for exchange in asked))
        yield
        await _end_all(upstream)
        with contextlib.suppress(TimeoutError):  # a slow gateway's backlog is not waited for
            async with asyncio.timeout(_DRAIN_S):
                await asyncio.gather(*(exchange.over for exchange in asked))
    finally:
        for client in clients:
            client.close()
    await asyncio.sleep(0.1)


async def _end_all(upstream: Target) -> None:
    client = await Client.connect(upstream, Tally())
    await _soon(client.ask(post(upstream, "/end", "{}")).over)
    client.close()


async def _soon(future: asyncio.Future[T]) -> T:
    async with asyncio.timeout(_PATIENCE_S):
        return await asyncio.shield(future)
