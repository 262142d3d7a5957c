"""A client that leaves, in every phase: the upstream is closed within 100 ms and nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, PING, H, T, chunked
from tests.support.script import Flood, Paced, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

CLOSED_WITHIN_S = 0.1

Leave = Callable[[RawClient], None]
PHASES: dict[str, tuple[Script, bool]] = {
    "before headers": ([Stall()], False),
    "after headers, before an event": ([Write(H), Stall()], False),
    "during prefill, with pings": ([Write(H + chunked(PING)), Stall()], False),
    "mid-stream": ([Write(H + chunked(T("a"))), Stall()], True),
    "mid-stream while tokens come": ([Write(H), Paced(rate=50)], True),
    "mid-flood": ([Write(H), Flood(64 * 1024 * 1024)], True),
}


async def closed_in(fu: ScriptedUpstream, connection_number: int = 0) -> float:
    """Seconds until the upstream saw the close of a generation's connection."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    connection = fu.generations[connection_number].connection
    await fu.until(lambda: not connection.is_open)
    return loop.time() - began


@pytest.mark.quiet
@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["close", "reset"])
@pytest.mark.parametrize("phase", PHASES)
async def test_the_upstream_is_closed_within_100_ms(phase: str, leave: Leave) -> None:
    script, answers = PHASES[phase]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        if answers:
            await client.post(CHAT, chat())
        else:
            await client.send(request(stream=True))
        await fu.generation()
        leave(client)
        assert await closed_in(fu) < CLOSED_WITHIN_S
        await gateway.until(lambda: gateway.idle)


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["close", "reset"])
async def test_a_whole_answer_is_not_waited_for_either(leave: Leave) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.send(request(stream=False))
        await fu.generation()
        leave(client)
        assert await closed_in(fu) < CLOSED_WITHIN_S
        await gateway.until(lambda: gateway.idle)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_the_queue_is_never_sent_upstream(*, stream: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as first:
        await first.post(CHAT, chat())
        async with await gateway.client() as second:
            await second.send(request(stream=stream))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
        await gateway.until(lambda: gateway.scheduler.depth == 0)
        assert gateway.scheduler.granted == 1
        assert len(fu.generations) == 1


async def test_scenario_022_a_grant_that_meets_a_leaving_client_is_passed_on() -> None:
    """There is one slot. Of three requests in the queue, the first leaves as the slot becomes free."""
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        for _ in range(20):
            clients = [await gateway.client() for _ in range(3)]
            for client in clients:
                await client.send(request(stream=True))
            clients[1].reset()
            await asyncio.gather(*(finish(client) for client in (clients[0], clients[2])))
        await gateway.until(lambda: gateway.idle)
        scheduler = gateway.scheduler
        released = sum(gateway.fleet.backends["gpu0"].pool.released.values())
        assert scheduler.granted == released
    assert fu.llama.deferred == 0


@pytest.mark.slow
async def test_after_many_departures_every_slot_serves_again() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2, tokens=200, rate=400))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        for _ in range(3):
            await asyncio.gather(*(leave_after(gateway, frames) for frames in (0, 1, 2, 3)))
            pool = gateway.fleet.backends["gpu0"].pool
            await gateway.until(lambda: pool.free == 2, within=6)  # noqa: B023
        answers = await asyncio.gather(
            *(read_stream(gateway.url, CHAT, chat(max_tokens=3)) for _ in range(2))
        )
        assert [frames[-1].data for frames in answers] == [DONE] * 2
    assert fu.llama.deferred == 0


async def leave_after(gateway: Gateway, frames: int) -> None:
    async with await gateway.client() as client:
        await client.send(request(stream=True))
        if frames:
            await client.head()
            async for _ in client.frames():
                frames -= 1
                if not frames:
                    break


async def finish(client: RawClient) -> None:
    async with client:
        await client.head()
        assert client.status == 200, await client.body()
        await client.body()


def request(*, stream: bool) -> bytes:
    return request_bytes("POST", CHAT, json=chat(stream=stream))
