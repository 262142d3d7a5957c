"""A lease is released before the sentinel is sent, only for a success, and only at the upstream's own end.

Each of the three conditions has a test here that fails when the condition is taken out of the relay.
"""

from __future__ import annotations

import asyncio

import pytest

from slotgate.gateway.app.application import build_app
from slotgate.gateway.auth.identity import Identities
from tests.support.client import read_stream
from tests.support.gateway import CHAT, chat, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.peer import AsgiPeer
from tests.support.script import Fin, Flood, Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


async def test_the_lease_is_back_before_the_sentinel_is_handed_to_send() -> None:
    """The client takes everything but the last frame, whose `send` never returns."""
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=3))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        app = build_app(settings_for(fu.url), gateway.parts, Identities(lambda _: None))
        async with AsgiPeer(app, json=chat()) as peer:
            peer.hold(lambda body: DONE in body)
            await peer.until(lambda: peer.blocked)
            assert gateway.scheduler.leases == 0
            assert gateway.fleet.backends["gpu0"].pool.free == 1
            assert not peer.complete


async def test_an_error_keeps_the_lease_until_the_upstream_is_closed_and_the_slot_verified() -> None:
    """The upstream sends an error and then a success, and does not close."""
    error = b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n'
    gate = Gate()
    script: Script = [
        Write(H + chunked(T("a"))),
        Write(chunked(error)),
        Write(chunked(DONE)),
        gate,
        Write(END),
    ]
    fu = ScriptedUpstream(scripts={CHAT: script})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        fu.llama.foreign = 1  # /slots goes on to show the slot as busy
        frames = await read_stream(gateway.url, CHAT, chat())
        pool = gateway.fleet.backends["gpu0"].pool
        assert DONE not in [frame.data for frame in frames]
        assert b'"boom"' in frames[-1].data
        assert len(pool.quarantine) == 1
        assert pool.free == 0
        await fu.until(lambda: not fu.generations[0].connection.is_open, within=0.5)
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 1, within=5)


async def test_a_sentinel_without_the_upstreams_end_is_not_believed_about_the_slot() -> None:
    """The body never ends after [DONE]: the client gets [DONE] after the grace, and the slot is verified."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"), STOP, DONE)), Stall()]})
    fu.llama.total_slots = 1
    streaming = {"terminal_grace_s": 0.05}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        fu.llama.foreign = 1
        frames = await read_stream(gateway.url, CHAT, chat())
        pool = gateway.fleet.backends["gpu0"].pool
        assert frames[-1].data == DONE
        assert len(pool.quarantine) == 1
        await fu.until(lambda: not fu.generations[0].connection.is_open, within=0.5)
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 1, within=5)


async def test_a_cancelled_stream_that_still_emits_a_sentinel_does_not_release_early() -> None:
    """The client leaves. Only then does the upstream finish, as if by itself."""
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(STOP, DONE) + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        fu.llama.foreign = 1
        client = await gateway.client()
        await client.post(CHAT, chat())
        client.close()
        await fu.until(lambda: not fu.generations[0].connection.is_open, within=1)
        gate.event.set()
        pool = gateway.fleet.backends["gpu0"].pool
        assert len(pool.quarantine) == 1
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 1, within=5)


async def test_a_client_that_never_reads_on_does_not_keep_the_slot() -> None:
    """There is one slot and an answer of 3 MB that is not read.

    The next request is admitted when the upstream has finished.
    """
    big: Script = [Write(H), Flood(3_000_000), Write(chunked(STOP, DONE) + END), Fin()]
    small: Script = [Write(H + chunked(T("mine"), STOP, DONE) + END), Fin()]
    scripts = iter([big, small])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with await gateway.client(receive_buffer=4096) as wedged:
            await wedged.post(CHAT, chat())
            wedged.stop_reading()
            frames = await read_stream(gateway.url, CHAT, chat())
            assert text_of(frames) == "mine"
            assert gateway.scheduler.leases == 0
        await gateway.until(lambda: gateway.idle)


@pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n"])
async def test_a_sentinel_without_its_blank_line_is_whole_for_the_client(ending: bytes) -> None:
    script: Script = [Write(H + chunked(T("a"), STOP, b"data: [DONE]" + ending) + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
        assert frames[-1].data == DONE
        assert gateway.fleet.backends["gpu0"].pool.free == 4


async def test_bytes_after_the_sentinel_do_not_reach_the_client() -> None:
    script: Script = [Write(H + chunked(T("a"), STOP, DONE, T("late"), DONE) + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = [frame.data for frame in await read_stream(gateway.url, CHAT, chat())]
    assert frames.count(DONE) == 1
    assert not any(b"late" in frame for frame in frames)


async def test_scenario_026_four_slots_and_ten_requests_never_run_more_than_four() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(4, tokens=20, rate=400))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        answers = await asyncio.gather(*(read_stream(gateway.url, CHAT, chat(str(n))) for n in range(10)))
    assert [frames[-1].data for frames in answers] == [DONE] * 10
    assert fu.llama.max_running == 4
    assert fu.llama.deferred == 0
