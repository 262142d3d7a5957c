"""Requests to a backend: every kind of end is recognised, and connections that are not needed are closed."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.upstream import End, UpstreamExchange, UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress
from slotgate.gateway.upstream.connection import MAX_HEAD_BYTES, UpstreamConnection, UpstreamPhase
from slotgate.gateway.upstream.transport import IDLE_S
from tests.support.connection import ConnectionEnding, ReceivedRequest
from tests.support.logged import logged
from tests.support.notation import DONE, END, STOP, H, T, answer, chunked
from tests.support.pulse import Pulse
from tests.support.script import (
    AwaitByte,
    Fin,
    Flood,
    Gate,
    Paced,
    Rst,
    Script,
    Sleep,
    Stall,
    Step,
    Write,
    bytewise,
    cut,
    stream,
)
from tests.support.scripted import ScriptedUpstream, refusing_url

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


class RecordingSink:
    """A sink that keeps everything it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.reads = 0
        self.ends: list[End] = []
        self.pulse = Pulse()

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def head(self, status: int, headers: Headers) -> None:
        assert not self.status
        assert not self.ends
        self.status, self.headers = status, headers

    def body(self, data: bytes) -> None:
        assert self.status
        assert not self.ends
        self.pieces.append(data)
        self.pulse.beat()

    def read_over(self) -> None:
        self.reads += 1

    def ended(self, end: End) -> None:
        self.ends.append(end)
        self.pulse.beat()

    async def end(self) -> End:
        await self.pulse.until(lambda: self.ends, self, within=5)
        [end] = self.ends
        return end


@asynccontextmanager
async def transport_to(
    fu: ScriptedUpstream, connect_timeout_s: float = 5.0
) -> AsyncIterator[UpstreamTransport]:
    """A transport to this server. At the end of the block, its connections are closed and counted."""
    transport = UpstreamTransport(
        BackendAddress.of(httpx.URL("http://127.0.0.1" if fu.uds else fu.url), fu.uds),
        connect_timeout_s=connect_timeout_s,
    )
    try:
        yield transport
    finally:
        await transport.aclose()
        assert repr(transport) == "<UpstreamTransport 0 connections, 0 idle>"


def playing(script: Script) -> ScriptedUpstream:
    return ScriptedUpstream(lambda _: script)


def post(fu: ScriptedUpstream, body: bytes = b"{}") -> httpx.Request:
    return httpx.Request("POST", httpx.URL(fu.url if not fu.uds else "http://llama").join(CHAT), content=body)


async def opened(
    transport: UpstreamTransport, fu: ScriptedUpstream
) -> tuple[RecordingSink, UpstreamExchange]:
    sink = RecordingSink()
    return sink, await transport.open(UpstreamRequest.of(post(fu)), sink)


async def streamed(script: Script) -> RecordingSink:
    """Return a sink that has received the stream of this script."""
    async with playing(script) as fu, transport_to(fu) as transport:
        sink, exchange = await opened(transport, fu)
        await sink.end()
        exchange.close()
        await exchange.closed
        await eventually(lambda: transport.connections == 0)
        return sink


async def ask(transport: UpstreamTransport, fu: ScriptedUpstream, body: bytes = b"{}") -> bytes:
    response = await transport.handle_async_request(post(fu, body))
    try:
        return await response.aread()
    finally:
        await response.aclose()


# The end of a stream


EVENTS = [T("안녕😀\u2028"), T("b"), STOP, DONE]
WHOLE = H + chunked(*EVENTS) + END


@pytest.mark.parametrize(
    "script",
    [
        stream(*EVENTS),
        [Write(WHOLE)],
        [Write(WHOLE), Stall()],
        [*bytewise(WHOLE), Fin()],
        [*cut(WHOLE, len(H) - 3, len(H) + 1, len(WHOLE) - 2), Fin()],
        [Write(answer(200, b"".join(EVENTS)))],
        [Write(answer(200, b"".join(EVENTS), b"Connection: close")), Fin()],
    ],
    ids=["llama-server", "one write", "left open", "bytewise", "cut", "length", "closing"],
)
async def test_a_whole_message_is_complete_however_its_reads_are_cut(script: Script) -> None:
    sink = await streamed(script)
    assert (sink.status, sink.data, sink.ends) == (200, b"".join(EVENTS), [End.COMPLETE])


async def test_completion_needs_neither_a_consumer_nor_a_close() -> None:
    gate = Gate()
    async with playing([Write(WHOLE), gate]) as fu, transport_to(fu) as transport:
        sink, _ = await opened(transport, fu)
        assert await sink.end() is End.COMPLETE
        assert not gate.event.is_set()


@pytest.mark.parametrize(
    ("rest", "end"),
    [
        ([Fin()], End.CUT_SHORT),
        ([Rst()], End.CUT_SHORT),
        ([Write(b"5\r\nab"), Fin()], End.CUT_SHORT),
        ([Write(b"zz\r\n"), Stall()], End.BROKEN),
        ([Write(b"3\r\nabcd\r\n"), Stall()], End.BROKEN),
    ],
    ids=["FIN", "RST", "half a chunk", "no chunk size", "chunk too long"],
)
async def test_scenario_056_a_truncated_message_is_not_complete(rest: Script, end: End) -> None:
    sink = await streamed([Write(H + chunked(T("a"))), Sleep(0.01), *rest])
    assert sink.ends == [end]
    assert sink.data.startswith(T("a"))


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", End.CUT_SHORT),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", End.CUT_SHORT),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", End.CUT_SHORT),
    ],
    ids=["length too long", "close-delimited", "HTTP/1.0"],
)
async def test_a_body_that_ends_with_the_connection_counts_as_cut_short(raw: bytes, end: End) -> None:
    sink = await streamed([Write(raw), Fin()])
    assert (sink.data, sink.ends) == (b"abc", [end])


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b"", End.CUT_SHORT),
        (b"HTTP/1.1 200 OK\r\nContent-", End.CUT_SHORT),
        (b"HTTP/1.1 100 Continue\r\n\r\n", End.CUT_SHORT),
        (b"SSH-2.0-OpenSSH_9.2\r\n", End.BROKEN),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", End.BROKEN),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", End.BROKEN),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", End.BROKEN),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES, End.BROKEN),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES, End.BROKEN),
        (b"HTTP/1.1 102 Processing\r\n\r\n" * 4096, End.BROKEN),
    ],
    ids=["none", "half", "interim", "other", "length", "both", "upgrade", "many", "long", "for ever"],
)
async def test_a_response_without_a_valid_head_never_begins(raw: bytes, end: End) -> None:
    sink = await streamed([Write(raw), Sleep(0.01), Fin()] if raw else [Fin()])
    assert (sink.status, sink.ends) == (0, [end])


async def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    sink = await streamed([*bytewise(interim + b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nhi")])
    assert (sink.status, sink.data, sink.ends) == (200, b"hi", [End.COMPLETE])
    assert sink.headers == [(b"x-a", b"1"), (b"content-length", b"2")]


async def test_the_sink_is_told_of_the_end_of_each_read_once() -> None:
    sink = await streamed([Write(H), Sleep(0.01), Write(chunked(*EVENTS)), Sleep(0.01), Write(END), Fin()])
    assert sink.reads == 2


# Encodings


GZIPPED = gzip.compress(b"".join(EVENTS))


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        (b"gzip", GZIPPED),
        (b"X-GZIP", GZIPPED),
        (b"deflate", zlib.compress(b"".join(EVENTS))),
        (b"identity", b"".join(EVENTS)),
    ],
)
async def test_scenario_043_an_encoded_body_is_decoded_and_its_header_dropped(
    encoding: bytes, content: bytes
) -> None:
    head = H[:-2] + b"Content-Encoding: " + encoding + b"\r\n\r\n"
    for body in (chunked(content), chunked(*[content[at : at + 1] for at in range(len(content))])):
        sink = await streamed([Write(head + body + END), Fin()])
        assert (sink.data, sink.ends) == (b"".join(EVENTS), [End.COMPLETE])
        assert b"content-encoding" not in dict(sink.headers)


@pytest.mark.parametrize(
    ("encoding", "content"), [(b"br", b"abc"), (b"gzip", b"no gzip"), (b"gzip, br", GZIPPED)]
)
async def test_a_body_that_cannot_be_decoded_is_broken(encoding: bytes, content: bytes) -> None:
    head = H[:-2] + b"Content-Encoding: " + encoding + b"\r\n\r\n"
    sink = await streamed([Write(head + chunked(content) + END), Stall()])
    assert (sink.data, sink.ends) == (b"", [End.BROKEN])


async def test_compressed_bytes_that_become_far_too_many_are_broken() -> None:
    head = H[:-2] + b"Content-Encoding: gzip\r\n\r\n"
    sink = await streamed([Write(head + chunked(gzip.compress(bytes(64 << 20)))), Stall()])
    assert sink.ends == [End.BROKEN]
    assert len(sink.data) < 8 << 20


INTERIM = b"HTTP/1.1 199 Odd\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_body_of_an_interim_response_is_not_taken_for_the_answer() -> None:
    sink = await streamed([Write(INTERIM + chunked(b"no answer") + END + H + chunked(*EVENTS) + END), Fin()])
    assert (sink.status, sink.data, sink.ends) == (200, b"".join(EVENTS), [End.COMPLETE])


async def test_an_interim_response_without_end_is_broken() -> None:
    sink = await streamed([Write(INTERIM), Flood(64 << 20)])
    assert (sink.data, sink.ends) == (b"", [End.BROKEN])


async def test_trailers_without_end_are_broken() -> None:
    trailers = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 1000) for number in range(1000))
    sink = await streamed([Write(H + chunked(*EVENTS) + b"0\r\n"), Write(trailers), Stall()])
    assert (sink.data, sink.ends) == (b"".join(EVENTS), [End.BROKEN])


# Closing


@pytest.mark.parametrize(
    "script",
    [[Stall()], [Write(H), Stall()], [Write(H), Paced(100)], [Write(H), Flood(64 << 20)]],
    ids=["before headers", "after headers", "in the stream", "in a flood"],
)
async def test_scenarios_001_and_002_the_backend_notices_a_close_at_once(script: Script) -> None:
    async with playing(script) as fu, transport_to(fu) as transport:
        sink, exchange = await opened(transport, fu)
        request = await fu.generation()
        if script[0] != Stall():
            await sink.pulse.until(lambda: sink.data or len(script) == 2, sink, within=2)
        closed_ns = time.perf_counter_ns()
        exchange.close()
        assert sink.ends == [End.CLOSED]
        await request.connection.closed()
        assert request.connection.ended_ns is not None
        assert request.connection.ended_ns - closed_ns < 100_000_000
        await exchange.closed
        exchange.close()
        await eventually(lambda: transport.connections == 0)
        assert sink.ends == [End.CLOSED]


async def test_a_sink_may_close_the_exchange_within_any_call() -> None:
    class Closing(RecordingSink):
        exchange: UpstreamExchange | None = None

        def body(self, data: bytes) -> None:
            super().body(data)
            assert self.exchange is not None
            self.exchange.close()

    gate = Gate()
    async with playing([gate, Write(WHOLE), Fin()]) as fu, transport_to(fu) as transport:
        sink = Closing()
        sink.exchange = await transport.open(UpstreamRequest.of(post(fu)), sink)
        gate.event.set()
        assert await sink.end() is End.CLOSED
        assert sink.data == EVENTS[0]


async def test_a_sink_that_raises_loses_only_its_own_connection() -> None:
    class Failing(RecordingSink):
        def body(self, data: bytes) -> None:
            raise LookupError("a fault of ours")

    async with playing(stream(*EVENTS)) as fu, transport_to(fu) as transport:
        sink = Failing()
        exchange = await transport.open(UpstreamRequest.of(post(fu)), sink)
        assert await sink.end() is End.BROKEN
        await exchange.closed


async def test_a_paused_backend_stops_sending_and_continues_when_resumed() -> None:
    async with playing([Write(H), Flood(16 << 20), Write(END), Fin()]) as fu, transport_to(fu) as transport:
        sink, exchange = await opened(transport, fu)
        request = await fu.generation()
        exchange.pause()
        exchange.pause()
        await fu.until(lambda: not request.connection.writable)
        held = len(sink.data)
        await asyncio.sleep(0)
        assert len(sink.data) == held
        exchange.resume()
        assert await sink.end() is End.COMPLETE
        assert len(sink.data) >= 16 << 20


# Connecting


async def test_a_refused_connection_is_a_connect_error() -> None:
    with refusing_url() as url:
        transport = UpstreamTransport(BackendAddress.of(httpx.URL(url), None), connect_timeout_s=5)
        with pytest.raises(httpx.ConnectError):
            await transport.open(UpstreamRequest(b"POST / HTTP/1.1\r\n\r\n", ()), RecordingSink())
        await eventually(lambda: transport.connections == 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_has_the_refusal_among_its_causes(host: str) -> None:
    """The health monitor recognises by it that another process answers at the address afterwards."""
    with refusing_url() as url:
        address = httpx.URL(url).copy_with(host=host)
        transport = UpstreamTransport(BackendAddress.of(address, None), connect_timeout_s=5)
        with pytest.raises(httpx.ConnectError) as refused:
            await transport.handle_async_request(httpx.Request("GET", address))
        assert isinstance(refused.value.__cause__, ConnectionRefusedError)
        with pytest.raises(httpx.ConnectError) as refused:
            await transport.open(UpstreamRequest(b"GET / HTTP/1.1\r\n\r\n", ()), RecordingSink())
        assert isinstance(refused.value.__cause__, ConnectionRefusedError)
        await eventually(lambda: transport.connections == 0)


async def test_a_connection_that_takes_too_long_is_a_connect_timeout() -> None:
    async with ScriptedUpstream(accepting=False, backlog=0) as fu, transport_to(fu, 0.05) as transport:
        attempts = [opened(transport, fu) for _ in range(4)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert any(isinstance(result, httpx.ConnectTimeout) for result in results)
        for result in results:
            if isinstance(result, tuple):
                result[1].close()
        await eventually(lambda: transport.connections == 0)


async def test_scenario_011_cancelled_attempts_leave_no_connection() -> None:
    async with ScriptedUpstream(accepting=False, backlog=0) as fu, transport_to(fu) as transport:
        for turns in range(20):
            attempts = [asyncio.ensure_future(opened(transport, fu)) for _ in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancelled(*attempts)
            for attempt in attempts:
                if not attempt.cancelled():
                    attempt.result()[1].close()
        await eventually(lambda: transport.connections == 0)
        fu.stop_listening()
        await fu.listen()
        await fu.accept()
        sink, _ = await opened(transport, fu)
        assert await sink.end() is End.COMPLETE


@pytest.mark.parametrize("way", ["stream", "whole"])
async def test_scenario_010_two_hundred_cancelled_requests_leave_no_connection(way: str) -> None:
    scripts: list[Script] = [
        [Stall()],
        [Write(H), Stall()],
        [Write(H), Paced(1000)],
        [Write(answer(200, {}))],
    ]
    pick = random.Random(7)
    async with ScriptedUpstream(lambda _: pick.choice(scripts)) as fu, transport_to(fu) as transport:

        async def use() -> None:
            if way == "whole":
                await ask(transport, fu)
                return
            sink, exchange = await opened(transport, fu)
            try:
                await sink.end()
            finally:
                exchange.close()

        for _ in range(200):
            turns = pick.randrange(60)
            work = asyncio.ensure_future(use())
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancelled(work)
        await eventually(lambda: transport.connections == transport.idle)
        await fu.until(lambda: fu.open == transport.connections)


async def test_a_connection_lost_before_the_request_ends_the_exchange() -> None:
    connection = UpstreamConnection(asyncio.get_running_loop())
    connection.connection_made(Closed())
    connection.connection_lost(None)
    sink = RecordingSink()
    connection.send(b"", (), sink)
    assert (sink.ends, connection.phase) == ([End.CUT_SHORT], UpstreamPhase.CLOSED)
    assert repr(connection) == "<UpstreamConnection closed, 0 exchanges>"


class Closed(asyncio.Transport):
    """A transport whose socket is closed."""

    def is_closing(self) -> bool:
        return True


async def test_a_backend_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(lambda _: stream(*EVENTS), uds=str(tmp_path / "llama.sock")) as fu,
        transport_to(fu) as transport,
    ):
        sink, _ = await opened(transport, fu)
        assert await sink.end() is End.COMPLETE
        assert fu.requests[0].head.get(b"host") == b"llama"


async def test_scenario_040_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    async with playing([Write(answer(200, {"a": 1}))]) as fu:
        backend = Backend("gpu0", fu.url, api_key="key")
        try:
            assert (await backend.ask("/health")).status_code == 200
            response = await backend.transport.handle_async_request(backend.whole_request(CHAT, (b"{}",), []))
            assert await response.aread() == b'{"a":1}'
        finally:
            await backend.aclose()


# Requests


async def test_a_request_is_sent_unchanged() -> None:
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        request = httpx.Request(
            "POST", f"{fu.url}/a%20b?q=%C3%A9", headers=[("X-A", "1"), ("X-A", "2")], content=b"{}"
        )
        await (await transport.handle_async_request(request)).aread()
        seen = fu.requests[0]
        assert (seen.method, seen.target, seen.body) == ("POST", "/a%20b?q=%C3%A9", b"{}")
        assert seen.head.all(b"x-a") == [b"1", b"2"]
        assert seen.head.get(b"content-length") == b"2"


@pytest.mark.parametrize("size", [2, 65536, 65537, 24 << 20])
async def test_a_body_of_any_size_arrives(size: int) -> None:
    body = b"{" + b" " * (size - 2) + b"}"
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        assert await ask(transport, fu, body) == b"{}"
        assert fu.requests[0].body == body


async def test_an_early_answer_to_a_body_that_is_not_read_ends_the_upload() -> None:
    class Refusing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            server_side.append(cast("asyncio.Transport", transport))

        def data_received(self, data: bytes) -> None:
            server_side[0].pause_reading()
            server_side[0].write(answer(413, {"error": "too large"}))

    server_side: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", 0)
    url = httpx.URL("http://127.0.0.1").copy_with(port=server.sockets[0].getsockname()[1])
    transport = UpstreamTransport(BackendAddress.of(url, None), connect_timeout_s=5)
    request = httpx.Request("POST", url, content=b"x" * (32 << 20))
    try:
        response = await transport.handle_async_request(request)
        assert (response.status_code, await response.aread()) == (413, b'{"error":"too large"}')
        await eventually(lambda: transport.connections == 0)
    finally:
        server_side[0].abort()
        server.close()
        await server.wait_closed()


# Reuse


async def test_a_connection_is_reused_for_the_next_whole_answer() -> None:
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        for _ in range(3):
            assert await ask(transport, fu) == b"{}"
        assert (len(fu.connections), len(fu.requests)) == (1, 3)
        assert (transport.connections, transport.idle) == (1, 1)


async def test_a_connection_is_reusable_when_the_answer_is_complete_even_if_it_is_unread() -> None:
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        response = await transport.handle_async_request(post(fu))
        await eventually(lambda: transport.idle == 1)
        assert await ask(transport, fu) == b"{}"
        assert await response.aread() == b"{}"
        assert len(fu.connections) == 1
        unread = await transport.handle_async_request(post(fu))
        await unread.aclose()
        await eventually(lambda: transport.idle == transport.connections)


async def test_a_stream_uses_a_new_connection_and_leaves_none() -> None:
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        sink, exchange = await opened(transport, fu)
        await sink.end()
        assert len(fu.connections) == 2
        exchange.close()
        await exchange.closed
        await eventually(lambda: transport.connections == 1)


@pytest.mark.parametrize(
    "raw",
    [
        answer(200, {}, b"Connection: close"),
        answer(200, {}).replace(b"HTTP/1.1", b"HTTP/1.0"),
        answer(200, {}) + b"HTTP/1.1 200 OK\r\n",
        answer(200, {}) + answer(200, {}),
        answer(200, {}) + b"HTTP/1.1 204 No Content\r\n\r\n",
        answer(200, {}) + b"surplus",
    ],
    ids=["close", "HTTP/1.0", "another answer begun", "another answer", "another without a body", "surplus"],
)
async def test_a_connection_that_closes_or_sends_too_much_is_not_reused(raw: bytes) -> None:
    with logged() as log:
        async with playing([Write(raw)]) as fu, transport_to(fu) as transport:
            for _ in range(2):
                assert await ask(transport, fu) == b"{}"
                await eventually(lambda: transport.connections == 0)
            assert len(fu.connections) == 2
    assert not log.errors, "what a backend says too much is no fault of ours"


@pytest.mark.parametrize(
    "end", [Write(b"HTTP/1.1 408 Timeout\r\n\r\n"), Fin(), Rst()], ids=["bytes", "FIN", "RST"]
)
async def test_an_idle_connection_that_the_backend_uses_or_closes_is_forgotten_at_once(end: Step) -> None:
    gate = Gate()
    async with playing([Write(answer(200, {})), gate, end]) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        assert (transport.connections, transport.idle) == (1, 1)
        gate.event.set()
        await eventually(lambda: transport.connections == 0)
        assert transport.idle == 0


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgate.gateway.upstream.transport.IDLE_S", 0.05)
    async with playing([Write(answer(200, {}))]) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        assert await fu.connections[0].closed() is ConnectionEnding.EOF
        assert (transport.connections, transport.idle) == (0, 0)
        await ask(transport, fu)
        assert len(fu.connections) == 2


def test_scenario_038_an_idle_connection_is_closed_before_llama_server_closes_it() -> None:
    assert IDLE_S <= 4.0, "llama-server closes after 5 s"


def first_then(later: Callable[[ReceivedRequest], Script]) -> Callable[[ReceivedRequest], Script]:
    """The first connection answers its first request and plays `later` for its second. Later ones answer."""

    def respond(request: ReceivedRequest) -> Script:
        return [Write(answer(200, {"n": 1}))] if len(request.connection.requests) == 1 else later(request)

    return respond


@pytest.mark.parametrize("ending", [Fin(), Rst()])
async def test_scenario_038_a_request_on_a_stale_connection_is_sent_again_on_a_new_one(
    ending: Fin | Rst,
) -> None:
    async with ScriptedUpstream(first_then(lambda _: [ending])) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        assert await ask(transport, fu) == b'{"n":1}'
        assert [len(connection.requests) for connection in fu.connections] == [2, 1]


async def test_scenario_038_a_connection_that_the_backend_has_closed_is_not_reused() -> None:
    async with playing([Write(answer(200, {})), Fin()]) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        await eventually(lambda: transport.connections == 0)
        await ask(transport, fu)
        assert [len(connection.requests) for connection in fu.connections] == [1, 1]


async def test_scenario_038_a_request_is_sent_again_if_its_first_byte_ends_the_connection() -> None:
    def respond(request: ReceivedRequest) -> Script:
        return (
            [Write(answer(200, {})), AwaitByte(), Rst()]
            if request.connection is fu.connections[0]
            else [Write(answer(200, {}))]
        )

    async with ScriptedUpstream(respond) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        assert await ask(transport, fu) == b"{}"
        assert len(fu.connections) == 2


@pytest.mark.parametrize("byte", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_scenario_038_a_request_is_not_sent_again_after_a_byte_of_the_response(byte: bytes) -> None:
    script: Script = [Write(byte), Sleep(0.01), Fin()]
    async with ScriptedUpstream(first_then(lambda _: script)) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        with pytest.raises(httpx.ReadError):
            await ask(transport, fu)
        assert len(fu.requests) == 2


async def test_a_request_on_a_new_connection_is_not_sent_again() -> None:
    async with playing([Fin()]) as fu, transport_to(fu) as transport:
        with pytest.raises(httpx.ReadError, match="cut short"):
            await ask(transport, fu)
        assert len(fu.requests) == 1


async def test_a_request_that_the_gateway_closed_is_not_sent_again() -> None:
    async with ScriptedUpstream(first_then(lambda _: [Stall()])) as fu, transport_to(fu) as transport:
        await ask(transport, fu)
        asking = asyncio.ensure_future(ask(transport, fu))
        await fu.until(lambda: len(fu.requests) == 2)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await asking
        assert len(fu.requests) == 2


async def test_a_truncated_answer_raises_after_its_last_piece() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
    async with playing([Write(raw), Sleep(0.01), Fin()]) as fu, transport_to(fu) as transport:
        response = await transport.handle_async_request(post(fu))
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"abc"
        with pytest.raises(httpx.ReadError, match="cut short"):
            await anext(pieces)
        await response.aclose()
        await eventually(lambda: transport.connections == 0)


async def test_a_slow_consumer_loses_no_piece() -> None:
    gate = Gate()
    script: Script = [Write(H + chunked(b"a")), gate, Write(chunked(b"b", b"c") + END)]
    async with playing(script) as fu, transport_to(fu) as transport:
        response = await transport.handle_async_request(post(fu))
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"a"
        gate.event.set()
        await eventually(lambda: transport.idle == 1)
        assert [piece async for piece in pieces] == [b"bc"]


# Waiting


async def eventually(condition: Callable[[], object]) -> None:
    """Let the event loop run until `condition()` is true."""
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0)


async def cancelled(*work: asyncio.Future[Any]) -> None:
    for task in work:
        task.cancel()
    await asyncio.wait(work, timeout=2)
    assert all(task.done() for task in work)


async def test_kept_connection_that_the_backend_has_closed_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not used even if the event loop has not read its end yet. So no request is sent twice."""
    monkeypatch.setattr("slotgate.gateway.upstream.transport.STALE_S", 0.0)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(2)
        url = httpx.URL(f"http://127.0.0.1:{server.getsockname()[1]}")
        transport = UpstreamTransport(BackendAddress.of(url, None), connect_timeout_s=5.0)

        async def asked() -> int:
            response = await transport.handle_async_request(httpx.Request("POST", url, content=b"{}"))
            await response.aread()
            return response.status_code

        def serve_one() -> socket.socket:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(answer(200, {}))
            return connection

        first = loop.run_in_executor(None, serve_one)
        assert await asked() == 200
        kept = await first
        second = loop.run_in_executor(None, serve_one)
        kept.close()
        assert await asked() == 200  # its first step follows without a turn of the loop
        (await second).close()
        await transport.aclose()
