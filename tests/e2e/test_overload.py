"""More requests than slots: they wait or are refused. When they are over, everything works as before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from slotgate.gateway.backends.circuit_breaker import CircuitState
from slotgate.gateway.backends.state import BackendState
from tests.e2e.test_endings import WAYS
from tests.e2e.test_endpoints import answering, error_of, upstream_of
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.endpoints import Way, speaking
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, H, T, chunked
from tests.support.script import Fin, Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

EACH = pytest.mark.parametrize(
    ("way", "stream"), list(speaking()), ids=[f"{way!r} {stream}" for way, stream in speaking()]
)


@EACH
async def test_scenario_035_after_a_full_queue_the_next_request_is_served(way: Way, *, stream: bool) -> None:
    gate = Gate()
    fu = upstream_of(way, [gate, *answering(way, stream=stream)], slots=1)
    async with fu, running_gateway(settings_for(fu.url, admission={"max_queue": 1})) as gateway:
        running = asyncio.create_task(way.ask(gateway.url, stream=stream))
        await fu.generation()
        waiting = asyncio.create_task(way.ask(gateway.url, stream=stream))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        refused = [await way.ask(gateway.url, stream=stream) for _ in range(2)]
        gate.event.set()
        answers = [await running, await waiting, await way.ask(gateway.url, stream=stream)]
    assert [(got.status, error_of(way, got)["type"]) for got in refused] == [(429, "rate_limit_error")] * 2
    assert [got.header(b"x-slotgate-reason") for got in refused] == [b"queue_full"] * 2
    assert all(int(got.header(b"retry-after") or 0) >= 1 for got in refused)
    assert [got.status for got in answers] == [200] * 3


@pytest.mark.parametrize("way", [way for way, stream in WAYS if stream], ids=repr)
async def test_scenario_031_every_stream_gets_its_own_error_when_the_shared_context_is_spent(
    way: Way,
) -> None:
    """llama-server ends all streams in the same moment. They are not the backend's fault."""
    error = way.error_event(500, "Context size has been exceeded.", "server_error")
    gate = Gate()
    fu = upstream_of(way, [Write(H + way.head()), gate, Write(chunked(error) + END), Fin()])
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        streams = [asyncio.create_task(way.frames(gateway.url)) for _ in range(4)]
        await fu.generation(3)
        gate.event.set()
        for frames in await asyncio.gather(*streams):
            assert way.text(frames) == "a"
            assert "Context size has been exceeded" in way.error(frames)["message"]
        backend = gateway.fleet.backends["gpu0"]
        assert (backend.state, backend.circuit.state) == (BackendState.READY, CircuitState.CLOSED)


@pytest.mark.slow
async def test_scenario_013_cancelled_requests_leave_no_connection_that_the_next_would_wait_for() -> None:
    """Two requests run and three wait when all five clients leave."""
    leaving = asyncio.Event()

    def scripted(_: ReceivedRequest) -> Script | None:
        return None if leaving.is_set() else [Stall()]

    fu = ScriptedUpstream(scripted, llama=LlamaLike(2, tokens=1))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with AsyncExitStack() as clients:
            for number in range(5):
                client = await clients.enter_async_context(await gateway.client())
                await client.send(request_bytes("POST", CHAT, json=chat(stream=bool(number % 2))))
            await fu.generation(1)
            await gateway.until(lambda: gateway.scheduler.depth == 3)
            leaving.set()
        answers = await asyncio.gather(*(read_stream(gateway.url, CHAT, chat()) for _ in range(2)))
        assert [frames[-1].data for frames in answers] == [DONE] * 2
        assert len(fu.generations) == 4
    assert fu.llama.deferred == 0


async def test_scenario_033_health_is_asked_for_while_streams_hold_every_lease() -> None:
    slots = 12
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]}, llama=LlamaLike(slots))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with AsyncExitStack() as streams:
            for _ in range(slots):
                client = await streams.enter_async_context(await gateway.client())
                await client.post(CHAT, chat())
            assert gateway.scheduler.leases == slots
            already = len(fu.requests)
            await fu.until(lambda: [r.path for r in fu.requests[already:]].count("/health") >= 1)
            assert gateway.fleet.backends["gpu0"].state is BackendState.READY


@pytest.mark.slow
async def test_scenario_032_three_hundred_streams_run_at_once() -> None:
    """There are three backends with a hundred slots each, and no smaller number in between."""
    script: Script = [Write(H + chunked(T("a"))), Stall()]
    upstreams = [ScriptedUpstream(scripts={CHAT: script}, llama=LlamaLike(100)) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for fu in upstreams:
            await stack.enter_async_context(fu)
        urls = [fu.url for fu in upstreams]
        gateway = await stack.enter_async_context(running_gateway(settings_for(*urls)))
        await gateway.until(lambda: all(b.pool.free == 100 for b in gateway.fleet.backends.values()))

        async def streaming() -> None:
            client = await stack.enter_async_context(await RawClient.connect(gateway.url))
            await client.request("POST", CHAT, json=chat(), within=20)
            assert client.status == 200

        await asyncio.gather(*(streaming() for _ in range(300)))
        assert [len(fu.generations) for fu in upstreams] == [100] * 3
        assert (gateway.scheduler.leases, gateway.scheduler.depth) == (300, 0)
