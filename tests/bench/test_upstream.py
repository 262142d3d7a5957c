"""The synthetic upstream, asked by the load's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic_ns

import orjson
import pytest

from bench import chunk
from bench.chunk import Stamps
from bench.stream import Client, Tally, Target, chat, post
from bench.upstream import SLOTS, Connection, Streams
from tests.support.client import RawClient
from tests.support.sse import FrameReader, data_of

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def upstream() -> AsyncIterator[Target]:
    loop = asyncio.get_running_loop()
    streams = Streams()
    server = await loop.create_server(lambda: Connection(loop, streams), "127.0.0.1", 0)
    try:
        yield Target(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("pace", [0, 500])
async def test_a_stream_has_as_many_tokens_as_were_asked_for(pace: int) -> None:
    tally = Tally()
    tally.recording = True
    async with upstream() as target:
        client = await Client.connect(target, tally)
        began = monotonic_ns()
        for _ in range(2):
            exchange = client.ask(chat(target, f"pace={pace} tokens=5"))
            await exchange.over
        client.close()
    assert tally.tokens == 10
    assert all(0 < latency < monotonic_ns() - began for latency in tally.latencies_ns)


@pytest.mark.slow
async def test_endless_streams_end_in_good_order_when_told() -> None:
    async with upstream() as target:
        asked = []
        clients = [await Client.connect(target, Tally()) for _ in range(3)]
        for client, pace in zip(clients, (0, 100, 1), strict=True):
            asked.append(client.ask(chat(target, f"pace={pace} tokens=0")))
        await asyncio.gather(*(exchange.first_token for exchange in asked))
        other = await Client.connect(target, Tally())
        await other.ask(post(target, "/end", "{}")).over
        await asyncio.gather(*(exchange.over for exchange in asked))
        for client in [*clients, other]:
            client.close()


async def test_a_chunk_has_the_shape_of_llama_servers() -> None:
    async with upstream() as target, await RawClient.connect(f"http://127.0.0.1:{target.port}") as client:
        question = {"messages": [{"role": "user", "content": "pace=0 tokens=1"}]}
        await client.request("POST", "/v1/chat/completions", json=question)
        role, said, finish, done = FrameReader().feed(await client.body())
    first, text, last = (orjson.loads(data_of(frame)) for frame in (role, said, finish))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert list(text) == ["choices", "created", "id", "model", "system_fingerprint", "object"]
    assert list(text["choices"][0]) == ["finish_reason", "index", "delta"]
    assert last["choices"][0]["finish_reason"] == "length"
    assert done == b"data: [DONE]\n\n"


async def test_the_synthetic_upstream_states_its_slots() -> None:
    async with upstream() as target, await RawClient.connect(f"http://127.0.0.1:{target.port}") as client:
        await client.request("GET", "/props")
        assert orjson.loads(await client.body())["total_slots"] == SLOTS
        await client.request("GET", "/slots")
        assert len(orjson.loads(await client.body())) == SLOTS


async def test_an_answer_that_is_no_stream_is_an_error_of_the_measurement() -> None:
    async with upstream() as target:
        client = await Client.connect(target, Tally())
        exchange = client.ask(post(target, "/nowhere", "{}"))
        with pytest.raises(ConnectionError, match="status 404"):
            await exchange.over
        client.close()


def test_tokens_are_read_however_the_body_is_cut() -> None:
    body = b"".join(chunk.token(stamp) for stamp in (1, 22, 333))
    whole = [b"%016d" % stamp for stamp in (1, 22, 333)]
    for cut in range(len(body)):
        stamps = Stamps()
        assert [*stamps.feed(body[:cut]), *stamps.feed(body[cut:])] == whole
    stamps = Stamps()
    assert [found for at in range(len(body)) for found in stamps.feed(body[at : at + 1])] == whole


def test_merged_tokens_are_counted_one_by_one() -> None:
    assert len(Stamps().feed(b'data: {"content":" t0000000000000001 t0000000000000002"}\n\n')) == 2
