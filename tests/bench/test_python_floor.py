"""The floor of Python: a process of its own, in front of the synthetic upstream."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.contestant import running
from bench.cores import choose
from bench.peers import python_floor
from bench.stream import Client, Tally, Target, chat, post
from bench.upstream import Connection, Streams
from tests.support.client import RawClient

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@dataclass
class Upstream:
    server: asyncio.Server
    streams: Streams
    transports: list[asyncio.BaseTransport]

    def cut(self) -> None:
        """Close all connections, whatever is under way."""
        for transport in self.transports:
            transport.close()

    async def idle(self) -> None:
        async with asyncio.timeout(5):
            while self.streams.open:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def floor(work: Path) -> AsyncIterator[tuple[Target, Upstream]]:
    loop = asyncio.get_running_loop()
    streams, transports = Streams(), list[asyncio.BaseTransport]()

    class Heard(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            transports.append(transport)

    server = await loop.create_server(lambda: Heard(loop, streams), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    core = choose().gateway
    try:
        async with running(python_floor.PEER, sys.executable, port, core=core, work=work) as contestant:
            yield contestant.target, Upstream(server, streams, transports)
    finally:
        server.close()
        await server.wait_closed()


async def test_a_stream_is_sent_on_and_its_connection_closed(tmp_path: Path) -> None:
    tally = Tally()
    async with floor(tmp_path) as (target, upstream):
        client = await Client.connect(target, tally)
        for pace in (0, 500):
            await client.ask(chat(target, f"pace={pace} tokens=5")).over
            assert client.usable
        client.close()
        async with asyncio.timeout(5):
            while not all(transport.is_closing() for transport in upstream.transports):
                await asyncio.sleep(0.01)
    assert tally.tokens == 10
    assert len(upstream.transports) == 3, "one a request, and one before the first"


async def test_an_answer_that_is_not_a_stream_keeps_status_and_type(tmp_path: Path) -> None:
    async with floor(tmp_path) as (target, _):
        async with await RawClient.connect(f"http://127.0.0.1:{target.port}") as client:
            head = await client.request("GET", "/health?verbose=1")
            assert head.start_line == b"HTTP/1.1 200 OK"
            assert head.get(b"content-type") == b"application/json"
            assert await client.json() == {"status": "ok"}
            head = await client.request("POST", "/nowhere", json={})
            assert head.start_line == b"HTTP/1.1 404 Not Found"
            assert await client.json() == {"error": {"code": 404}}


async def test_a_client_that_leaves_takes_its_stream_with_it(tmp_path: Path) -> None:
    async with floor(tmp_path) as (target, upstream):
        client = await Client.connect(target, Tally())
        await client.ask(chat(target, "pace=100 tokens=0")).first_token
        assert upstream.streams.open
        client.close()
        await upstream.idle()


async def test_an_upstream_that_closes_in_the_middle_ends_the_answer(tmp_path: Path) -> None:
    async with floor(tmp_path) as (target, upstream):
        client = await Client.connect(target, Tally())
        exchange = client.ask(chat(target, "pace=100 tokens=0"))
        await exchange.first_token
        upstream.cut()
        with pytest.raises(ConnectionError, match="before the answer was over"):
            async with asyncio.timeout(5):
                await exchange.over


async def test_an_upstream_that_is_gone_is_a_502(tmp_path: Path) -> None:
    async with floor(tmp_path) as (target, upstream):
        upstream.server.close()
        client = await Client.connect(target, Tally())
        with pytest.raises(ConnectionError, match="status 502"):
            await client.ask(post(target, "/v1/chat/completions", "{}")).over
        client.close()
