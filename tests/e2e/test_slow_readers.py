"""Clients that read slowly or not at all cost a bounded amount of memory, and never a slot."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.streaming.downstream import Downstream
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, answer, chunked
from tests.support.script import Fin, Flood, Paced, Script, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
LOGPROBS = T("x" * 4000).replace(b'"finish_reason"', b'"logprobs":{"content":[]},"finish_reason"')
"""A long frame that may not be merged, because these tests are about bytes and not about frames."""


def big(size: int, frame: bytes = T("x" * 100)) -> Script:
    return [Write(H), Flood(size, frame), Write(chunked(STOP, DONE) + END), Fin()]


def then_small(first: Script) -> ScriptedUpstream:
    """Return an upstream with one slot. The first request gets this script, later ones a short answer."""
    small: Script = [Write(H + chunked(T("mine"), STOP, DONE) + END), Fin()]
    fu = ScriptedUpstream(lambda request: first if b'"first"' in request.body else small)
    fu.llama.total_slots = 1
    return fu


@pytest.mark.quiet
@pytest.mark.parametrize("attempt", ["once"])
async def test_the_next_request_is_admitted_within_50_ms_of_the_upstreams_end(attempt: str) -> None:
    """There is one slot. A client stalls after the first frame of a 5 MB answer, and never closes."""
    waits: list[float] = []
    for _ in range(4):
        fu = then_small(big(5_000_000))
        async with fu, running_gateway(settings_for(fu.url)) as gateway:
            async with await gateway.client(receive_buffer=4096) as wedged:
                await wedged.post(CHAT, chat("first"))
                wedged.stop_reading()
                frames = await read_stream(gateway.url, CHAT, chat("second"))
                assert text_of(frames) == "mine"
                pool = gateway.fleet.backends["gpu0"].pool
                assert pool.leases == {}, "the wedged client's response is open; its generation is over"
                first, second = fu.generations
                waits.append((second.received_ns - first.write_ns[-1]) / 1e6)
        assert fu.llama.deferred == 0
        if waits[-1] < 50:
            return
    raise AssertionError(f"admitted after {waits} ms")


@pytest.mark.slow
async def test_a_stalled_client_gets_the_rest_from_memory_when_it_reads_on() -> None:
    fu = then_small(big(3 * MIB))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.post(CHAT, chat("first"))
            client.stop_reading()
            await gateway.until(lambda: gateway.scheduler.leases == 0)
            client.resume_reading()
            frames = [frame async for frame in client.frames()]
        assert frames[-1].data == DONE
        assert len(text_of(frames)) >= 3 * MIB // len(chunked(T("x" * 100))) * 100


async def test_scenario_095_a_client_that_takes_nothing_is_cut_after_the_stall_timeout() -> None:
    fu = then_small([Write(H), Flood(64 * MIB, LOGPROBS)])
    streaming = {"client_stall_timeout_s": 0.3, "stream_buffer_bytes": MIB}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.post(CHAT, chat("first"))
            client.stop_reading()
            await fu.until(lambda: not fu.generations[0].connection.is_open, within=3)
            await gateway.until(lambda: gateway.scheduler.leases == 0)
            client.resume_reading()
            await client.body()
            assert not client.clean_end


@pytest.mark.slow
async def test_a_drip_reader_is_cut_when_it_has_stopped_the_upstream_for_too_long_in_all() -> None:
    """Each of the client's reads is in time, but together its pauses stop the upstream for too long."""
    fu = then_small([Write(H), Flood(256 * MIB, LOGPROBS)])
    streaming = {"client_stall_timeout_s": 0.5, "stream_buffer_bytes": 65536}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.post(CHAT, chat("first"))
            taken = asyncio.create_task(drip(client))
            await fu.until(lambda: not fu.generations[0].connection.is_open, within=5)
            await taken
            assert client.received_bytes < 256 * MIB


async def drip(client: RawClient) -> None:
    """Read a little every few milliseconds, until the connection ends."""
    async for _ in client.pieces():
        client.stop_reading()
        await asyncio.sleep(0.01)
        client.resume_reading()


@pytest.mark.slow
async def test_scenario_095_a_reader_that_keeps_up_on_average_is_not_cut() -> None:
    """The client reads in bursts with pauses, each shorter than the limit."""
    script: Script = [Write(H), Paced(200, count=200), Write(chunked(STOP, DONE) + END), Fin()]
    fu = then_small(script)
    streaming = {"client_stall_timeout_s": 0.3}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        async with await gateway.client() as client:
            await client.post(CHAT, chat("first"))
            got = []
            async for frame in client.frames():
                got.append(frame)
                if len(got) % 40 == 0:
                    client.stop_reading()
                    await asyncio.sleep(0.1)
                    client.resume_reading()
    assert got[-1].data == DONE
    assert text_of(got) == "".join(f" {number}" for number in range(200))


@pytest.mark.slow
async def test_the_largest_stalled_stream_of_the_largest_tenant_is_cancelled_when_memory_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled: list[Downstream] = []
    cancel = Downstream.cancel

    def noted(out: Downstream) -> None:
        cancelled.append(out)
        cancel(out)

    monkeypatch.setattr(Downstream, "cancel", noted)

    def script(request: ReceivedRequest) -> Script:
        size = int(request.json()["messages"][0]["content"]) * MIB
        return [Write(H), Flood(size, LOGPROBS), Write(chunked(STOP, DONE) + END), Fin()]

    fu = ScriptedUpstream(script, llama=LlamaLike(8))
    tenants = [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in ("greedy", "modest")]
    streaming = {"stream_buffer_bytes": 40 * MIB, "stream_buffers_total_bytes": 40 * MIB}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming, tenant=tenants)) as gateway:
        clients: dict[str, RawClient] = {}
        for tenant, size in [("greedy", 12), ("modest", 10), ("greedy", 24), ("modest", 16)]:
            client = clients[f"{tenant} {size}"] = await gateway.client(receive_buffer=4096)
            await client.post(CHAT, chat(str(size)), f"authorization: Bearer sg-{tenant}".encode())
            client.stop_reading()
            await fu.until(lambda: fu.generations[-1].finished or bool(cancelled), within=10)
        await gateway.until(lambda: len(cancelled) == 1)
        for client in clients.values():
            client.resume_reading()
        ends = {}
        for name, client in clients.items():
            await client.body(within=10)
            ends[name] = client.clean_end
            client.close()
    assert ends == {"greedy 12": True, "modest 10": True, "greedy 24": False, "modest 16": True}


@pytest.mark.slow
async def test_scenario_095_two_hundred_stalled_readers_hold_no_more_than_their_budget(
    tmp_path: Path,
) -> None:
    """Each client is offered 64 MB. The gateway's memory grows by the budget, not by the offered bytes."""
    readers, budget = 200, 64 * MIB
    fu = ScriptedUpstream(lambda _: [Write(H), Flood(64 * MIB, LOGPROBS)], llama=LlamaLike(readers))
    configuration = backend_table("{url}") + (
        "[admission]\nmax_queue = 1000\n[streaming]\n"
        f"stream_buffer_bytes = 262144\nstream_buffers_total_bytes = {budget}\nclient_stall_timeout_s = 60\n"
    )
    async with fu, served_gateway(tmp_path, configuration.replace("{url}", fu.url)) as served:
        before = resident(served.process.pid)
        clients = []
        for _ in range(readers):
            client = await RawClient.connect(served.url, receive_buffer=4096)
            await client.request("POST", CHAT, json=chat("first"), within=20)
            client.stop_reading()
            clients.append(client)
        written = -1
        while written != (written := sum(connection.written_bytes for connection in fu.connections)):
            await asyncio.sleep(0.3)  # until the upstreams are stopped
        grown = resident(served.process.pid) - before
        print(f"{readers} stalled readers: {grown / MIB:.0f} MiB")
        for client in clients:
            client.reset()
        await fu.until(lambda: fu.open <= 1, within=10)
    assert grown < budget + readers * 512 * 1024


def resident(pid: int) -> int:
    """Return the bytes of resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- whole answers

WHOLE_BYTES = 8 * MIB
WHOLE_PATHS = (CHAT, "/detokenize")
"""An endpoint that takes a slot, and an endpoint that does not."""


def whole(size: int = WHOLE_BYTES) -> ScriptedUpstream:
    script: Script = [Write(answer(200, {"choices": [], "content": "x" * size})), Fin()]
    return ScriptedUpstream(scripts=dict.fromkeys(WHOLE_PATHS, script))


async def slowly(client: RawClient) -> int:
    """Read the whole body with a short pause after every read. Return its size."""
    size = 0
    async for piece in client.pieces():
        size += len(piece)
        client.stop_reading()
        await asyncio.sleep(0.001)
        client.resume_reading()
    return size


def ended(gateway: Gateway) -> list[str]:
    return [line["outcome"] for line in gateway.log.of("request")]


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE_PATHS)
async def test_a_slow_client_that_never_pauses_gets_its_whole_answer(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than any limit of an idle or a closing connection."""
    monkeypatch.setattr("slotgate.gateway.server.connection.FLUSH_S", 0.02)
    fu = whole()
    server, streaming = {"port": 0, "keep_alive_s": 0.02}, {"client_stall_timeout_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, server=server, streaming=streaming)) as gateway:
        async with await gateway.client(receive_buffer=65536) as client:
            await client.send(request_bytes("POST", path, json=chat(stream=False, tokens=[1])))
            await client.head()
            assert await slowly(client) > WHOLE_BYTES
            assert client.clean_end
        await gateway.until(lambda: ended(gateway))
        assert ended(gateway) == ["ok"]
        assert gateway.parts.runtime.buffers.drawn == 0


@pytest.mark.parametrize("path", WHOLE_PATHS)
@pytest.mark.parametrize("leaves", [False, True], ids=["stalls", "leaves"])
async def test_an_answer_that_was_not_delivered_is_not_ok(path: str, *, leaves: bool) -> None:
    fu = whole()
    streaming = {"client_stall_timeout_s": 0.1}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.send(request_bytes("POST", path, json=chat(stream=False, tokens=[1])))
            await client.head()
            client.stop_reading()
            if leaves:
                client.reset()
            await gateway.until(lambda: ended(gateway), within=2)
        assert ended(gateway) == ["client_gone" if leaves else "client_stalled"]
        [past] = gateway.parts.history.newest(asyncio.get_running_loop().time())
        assert past["outcome"] == ended(gateway)[0]
        assert gateway.parts.runtime.buffers.drawn == 0
