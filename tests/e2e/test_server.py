"""Everything a client can do to its connection, and the server's reaction.

The tests use real sockets and uvloop. No test may leave a warning or an error in the log of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.server.connection import (
    MAX_AHEAD_BYTES,
    MAX_PIPELINED,
    ClientConnection,
)
from slotgate.gateway.server.connection_phase import ConnectionPhase
from slotgate.gateway.server.connection_registry import SPARE
from slotgate.gateway.server.listener import Listener
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, chat, data_of, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, answer, chunked
from tests.support.script import Flood, Gate, Paced, Script, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

Leave = Callable[[RawClient], None]
LEAVING = pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["close", "reset"])
CLOSED_WITHIN_S = 0.1
HEALTH = request_bytes("GET", "/health")
STREAM = request_bytes("POST", CHAT, json=chat())
TYPE = (b"Content-Type: application/json",)
CHUNKED = (*TYPE, b"Transfer-Encoding: chunked")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that neither uvicorn nor asyncio logs an error."""
    yield
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not loud


def serving(fu: ScriptedUpstream, **server: Any) -> Any:  # noqa: ANN401
    return running_gateway(settings_for(fu.url, server={"port": 0, **server}))


@asynccontextmanager
async def serving_app(app: ASGIApp) -> AsyncIterator[Listener]:
    """Serve another application, which does things that the gateway never does."""
    server = Listener(app, settings_for("http://127.0.0.1:9").server)
    await server.listen()
    try:
        yield server
    finally:
        server.close()
        await asyncio.sleep(0)
        if server.connections.tasks:
            await asyncio.wait(server.connections.tasks, timeout=1)


async def closes(client: RawClient, within: float = 2.0) -> None:
    """Check that the server ends the connection properly and sends nothing more."""
    assert await client.eof(within), "it was reset"


async def upstream_closes(fu: ScriptedUpstream, number: int = 0) -> None:
    """Wait at most the 100 ms that a generation may outlive its client."""
    connection = fu.generations[number].connection
    await fu.until(lambda: not connection.is_open, within=CLOSED_WITHIN_S)


# -- pipelining


@LEAVING
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("more", [Stall(), Paced(rate=50)], ids=["silent", "live"])
async def test_the_running_request_of_a_pipeline_sees_that_its_client_left(
    more: Stall | Paced, segments: int, leave: Leave
) -> None:
    """uvicorn tells only the last one, and none while reading is paused."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), more]})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM * 2 if segments == 1 else STREAM)
        await client.head()
        if segments == 2:
            await client.send(STREAM)
        async for _ in client.frames():
            break
        leave(client)
        await upstream_closes(fu)
        await gateway.until(lambda: gateway.idle)
    assert len(fu.generations) == 1


@LEAVING
async def test_a_send_after_the_client_left_does_not_raise(leave: Leave) -> None:
    """The client leaves during a flood, with another request sent, so that writes meet a closing
    transport."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Flood(64 * 1024 * 1024)]})
    async with fu, serving(fu) as gateway:
        for _ in range(10):
            async with await gateway.client() as client:
                await client.send(STREAM * 2)
                await client.head()
                leave(client)
                await gateway.until(lambda: gateway.idle)


@pytest.mark.parametrize("gap", [False, True], ids=["one segment", "two segments"])
async def test_pipelined_requests_are_answered_in_order(*, gap: bool) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2, tokens=3))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        requests = [HEALTH, STREAM, request_bytes("GET", "/v1/models"), request_bytes("GET", "/nowhere")]
        await client.send(b"".join(requests[:2]))
        if gap:
            await fu.generation()
        await client.send(b"".join(requests[2:]))
        await client.head()
        assert await client.json() == {"status": "ok"}
        await client.head()
        assert [frame.data async for frame in client.frames()][-1] == DONE
        await client.head()
        assert (await client.json())["object"] == "list"
        await client.head()
        assert client.status == 404
        await client.body()
        await client.send(HEALTH)
        await client.head()
        assert client.status == 200


async def test_a_body_that_arrives_while_the_previous_request_runs_is_complete() -> None:
    """90 KB in pieces, after a stream: more than uvicorn reads ahead, and more than is kept at once."""
    gate = Gate()
    scripts: Iterator[Script] = iter(
        [[Write(H + chunked(T("a"))), gate, Write(chunked(DONE) + b"0\r\n\r\n")], stream(DONE)]
    )
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    big = request_bytes("POST", CHAT, json=chat("x" * (MAX_AHEAD_BYTES - 4096)))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM + big[:4096])
        await client.head()
        for start in range(4096, len(big), 16384):
            await client.send(big[start : start + 16384])
        gate.event.set()
        await client.body()
        await client.head()
        assert client.status == 200
        await client.body()
        assert len(fu.generations[1].body) > MAX_AHEAD_BYTES - 4096


async def test_requests_beyond_the_limit_of_bytes_sent_ahead_are_not_answered() -> None:
    """The running request is completed, and its client is still watched. Then the connection closes."""
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), DONE) + b"0\r\n\r\n")]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM)
        await client.head()
        await client.send(HEALTH * (4 * MAX_AHEAD_BYTES // len(HEALTH)))
        gate.event.set()
        frames = [frame async for frame in client.frames()]
        assert text_of(frames) == "ab"
        assert client.clean_end
        await closes(client)


async def test_too_much_sent_ahead_does_not_cut_an_answer_that_is_complete_and_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LINGER_S", "FLUSH_S"):
        monkeypatch.setattr(f"slotgate.gateway.server.connection.{name}", 0.05)
    size, ended = 2**23, asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        length = (b"content-length", b"%d" % size)
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"x" * size})
        ended.set()

    async with (
        serving_app(app) as server,
        await RawClient.connect(server.url, receive_buffer=65536) as client,
    ):
        await client.send(HEALTH)
        await ended.wait()
        await client.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"y" * MAX_AHEAD_BYTES)
        await asyncio.sleep(0.2)
        await client.head()
        assert len(await client.body()) == size


@LEAVING
async def test_a_client_that_sent_too_much_ahead_is_still_noticed_when_it_leaves(leave: Leave) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM)
        await client.head()
        await client.send(HEALTH * (4 * MAX_AHEAD_BYTES // len(HEALTH)))
        leave(client)
        await upstream_closes(fu)


async def test_the_first_of_too_many_requests_in_one_segment_are_answered() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(HEALTH * 3 * MAX_PIPELINED)
        for _ in range(1 + MAX_PIPELINED):
            await client.head()
            assert client.status == 200
            await client.body()
        await closes(client)


async def test_garbage_after_a_stream_request_does_not_get_into_the_stream() -> None:
    """uvicorn writes its 400 into the middle of the answer that is under way."""
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), DONE) + b"0\r\n\r\n")]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM + b"\x00garbage\r\n\r\n")
        await client.head()
        gate.event.set()
        frames = [frame.data async for frame in client.frames()]
        assert frames[-1] == DONE
        await closes(client)


# -- HTTP/1.0, HEAD, Expect


async def test_scenario_090_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection() -> None:
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), DONE) + b"0\r\n\r\n")]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, b"Connection: keep-alive", json=chat(), version="1.0"))
        head = await client.head()
        assert head.get(b"transfer-encoding") is None
        assert head.get(b"content-length") is None
        assert head.get(b"connection") == b"close"
        frames = []
        async for frame in client.frames():
            frames.append(frame)
            gate.event.set()
        assert text_of(frames) == "ab"
        assert frames[-1].data == DONE


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_with_a_length_is_the_same_for_http_1_0(*, stream: bool) -> None:
    said = {"id": "x", "choices": [], "object": "chat.completion"}
    script: Script = [Write(answer(400, {"error": {"message": "no"}}) if stream else answer(200, said))]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=chat(stream=stream), version="1.0"))
        head = await client.head()
        assert client.status == (400 if stream else 200)
        assert int(head.get(b"content-length") or 0) == len(await client.body())
        await closes(client)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(("target", "status"), [("/v1/models", 200), (CHAT, 405), ("/nowhere", 404)])
async def test_scenario_090_head_has_headers_and_no_body(target: str, status: int, version: str) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request_bytes("HEAD", target, b"Connection: close", version=version))
        head = await client.head()
        assert client.status == status
        assert int(head.get(b"content-length") or 0) > 0
        assert (head.get(b"allow") is not None) == (status == 405)
        await closes(client)


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    body = orjson.dumps(chat())
    head, _, _ = request_bytes("POST", CHAT, b"Expect: 100-continue", json=chat()).partition(body)
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(head)
        await client.head()
        assert client.status == 100
        await client.send(body)
        await client.head()
        assert client.status == 200
        assert [frame.data async for frame in client.frames()][-1] == DONE


async def test_a_request_refused_before_its_body_gets_no_100_continue() -> None:
    """The body may or may not still come, so the connection is not used for another request."""
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(
            request_bytes("POST", "/nowhere", *TYPE, b"Expect: 100-continue", b"Content-Length: 9")
        )
        head = await client.head()
        assert (client.status, head.get(b"connection")) == (404, b"close")
        await client.body()
        await closes(client)


async def test_http_1_0_gets_no_100_continue() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, b"Expect: 100-continue", json=chat(), version="1.0"))
        await client.head()
        assert client.status == 200


async def test_a_refusal_does_not_overtake_the_head_of_the_previous_answer() -> None:
    """The head of an answer to HEAD waits for bytes that never follow."""

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await behind.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    behind = asyncio.Event()
    async with serving_app(late) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("HEAD", "/"))
        await asyncio.sleep(0.01)
        await client.send(b"GARBAGE\r\n\r\n")
        await asyncio.sleep(0.01)
        behind.set()
        await client.head()
        assert client.status == 204
        await client.head()
        assert client.status == 400


async def test_a_refusal_does_not_overtake_100_continue() -> None:
    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        asked = receive()
        asked.send(None)  # type: ignore[attr-defined]  # as far as it gets: 100 Continue is written
        [protocol] = server.connections.connections
        protocol.data_received(b"zz\r\n")  # what the next look at the socket finds
        asked.close()  # type: ignore[attr-defined]

    async with serving_app(asking) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("POST", "/", *CHUNKED, b"Expect: 100-continue"))
        await client.head()
        assert client.status == 100
        await client.head()
        assert client.status == 400
        await client.body()
        await closes(client)


# -- answers before the request has come whole


async def test_scenario_093_an_upload_that_is_too_large_still_gets_its_413() -> None:
    """Closing with unread bytes would reset the connection, and the answer would be lost."""
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_body_bytes=1024) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, *CHUNKED))
        for _ in range(64):
            await client.send(chunked(b"x" * 65536))
        await client.send(b"0\r\n\r\n")
        await client.head()
        assert client.status == 413
        await client.body()
        assert (await client.request("GET", "/health")).start_line.endswith(b"200 OK")


async def test_a_connection_is_usable_after_a_request_that_was_refused_early_and_came_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds for a body of several reads too. The limit for dropping the body ends with the body."""
    monkeypatch.setattr("slotgate.gateway.server.connection.LINGER_S", 0.3)
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.request("POST", "/nowhere", *TYPE, body=b"x" * 600_000)
        assert client.status == 404
        await client.body()
        await asyncio.sleep(0.4)
        await client.request("GET", "/health")
        assert client.status == 200


async def test_garbage_in_the_rest_of_a_refused_upload_is_not_answered_again() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.request("POST", "/nowhere", *CHUNKED)
        assert client.status == 404
        await client.body()
        await client.send(b"zz\r\n")
        await closes(client)


async def test_the_rest_of_a_refused_upload_is_read_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotgate.gateway.server.connection.LINGER_S", 0.1)
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_body_bytes=1024) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, *TYPE, b"Content-Length: 100000000"))
        await client.head()
        assert client.status == 413
        await client.body()
        dripping = asyncio.create_task(drip(client, b"x" * 10000))
        await client.eof(within=1)
        dripping.cancel()


# -- the size of headers


def line_of(size: int) -> bytes:
    return b"X-Long: ".ljust(size, b"x")


HEADS = {
    "one header": [b"GET /health HTTP/1.1\r\nHost: x\r\n" + line_of(32768) + b"\r\n\r\n"],
    "many headers": [b"GET /health HTTP/1.1\r\n" + b"X-Some: thing\r\n" * 1500 + b"\r\n"],
    "the target": [b"GET /health?" + b"x" * 20480 + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
    "a head without end": [b"GET /health HTTP/1.1\r\n", *([b"X-Some: thing\r\n" * 100] * 12)],
    "a header without end": [b"GET /health HTTP/1.1\r\n" + line_of(12000), *([b"x" * 1000] * 5)],
    "a target without end": [b"GET /" + b"x" * 12000, *([b"x" * 1000] * 5)],
    "before the first line": [b"\r\n" * 9000],
}


@pytest.mark.parametrize("case", HEADS)
async def test_scenario_091_headers_that_are_too_large_are_431(case: str) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_header_bytes=16384) as gateway, await gateway.client() as client:
        for segment in HEADS[case]:
            await client.send(segment)
            await asyncio.sleep(0.001)
        head = await client.head()
        assert client.status == 431
        error = (await client.json())["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "headers_too_large")
        assert head.get(b"content-type") == b"application/json"
        assert head.get(b"x-slotgate-reason") == b"headers_too_large"
        assert head.get(b"x-request-id")
        assert head.get(b"date")
        assert head.get(b"server") is None
        await closes(client)


HIDDEN = {
    "a trailer without end": [b"0\r\n" + line_of(12000), *([b"x" * 1000] * 20)],
    "trailers without end": [b"0\r\n", *([b"X-Some: thing\r\n" * 100] * 12)],
    "an extension of a chunk": [b"5;" + b"x" * 12000, *([b"x" * 1000] * 20)],
}


@pytest.mark.parametrize("case", HIDDEN)
async def test_parts_of_a_request_that_the_application_never_sees_are_limited_too(case: str) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_header_bytes=16384) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, *CHUNKED) + chunked(b"{"))
        for segment in HIDDEN[case]:
            await client.send(segment)
            await asyncio.sleep(0.001)
        await client.head()
        assert client.status == 431
        await client.body()
        await closes(client)
        assert not gateway.server.connections.tasks, "the application was not told"


async def test_trailers_do_not_count_against_the_headers_of_the_next_request() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_header_bytes=16384) as gateway, await gateway.client() as client:
        await client.send(request_bytes("GET", "/health", *CHUNKED) + b"0\r\n")
        for piece in (line_of(12000) + b"\r\n", b"\r\n", b"GET /health HTTP/1.1\r\n" + line_of(12000)):
            await asyncio.sleep(0.01)
            await client.send(piece)
        await asyncio.sleep(0.01)
        await client.send(b"\r\nHost: x\r\n\r\n")
        for _ in range(2):
            await client.head()
            assert client.status == 200
            await client.body()


async def test_megabytes_of_headers_are_neither_kept_nor_read() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(b"GET /health HTTP/1.1\r\nX-Long: ")
        sent = 0
        while client.received_bytes == 0 and sent < 64 * 65536:
            sending = asyncio.create_task(client.send(b"x" * 65536))
            await asyncio.wait([sending], timeout=0.05)
            sent += 65536
            await asyncio.sleep(0.01)
            if gateway.server.connections.refused:
                break
        assert sent <= 8 * 65536
        await client.head()
        assert client.status == 431


async def test_scenario_091_300_headers_and_a_long_key_reach_the_application() -> None:
    tenants = [{"name": "a", "key_hashes": [hash_key("sg-a")]}]
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants)) as gateway:
        async with await gateway.client() as client:
            many = [b"X-Header-%d: value" % number for number in range(300)]
            await client.request("GET", "/health", *many)
            assert client.status == 200
            await client.body()
            await client.request("GET", "/v1/models", b"Authorization: Bearer " + b"k" * 8192)
            assert client.status == 401
            assert (await client.json())["error"]["code"] == "invalid_api_key"


async def test_trailers_do_not_become_headers() -> None:
    """uvicorn appends them to the headers of the request, even headers that trailers may not set."""
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        body = orjson.dumps(chat())
        await client.send(request_bytes("POST", CHAT, *CHUNKED) + chunked(body))
        await client.send(b"0\r\nX-Request-Id: forged\r\ntraceparent: forged\r\n\r\n")
        head = await client.head()
        assert head.get(b"x-request-id") != b"forged"
        assert b"traceparent" not in dict(fu.generations[0].head.headers)


# -- bytes that are not HTTP

GARBAGE = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "an unknown method": b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2 with prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two framings": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
    "a bad chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a target without a path": b"GET http://example.org HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target that is not ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "no host but that of the target": b"GET http://localhost/health HTTP/1.1\r\n\r\n",
    "an absolute target without a host": b"GET http:///health HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute target of another protocol": b"GET ftp://localhost/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_bytes_that_are_not_http_get_a_400_in_json_and_close_the_connection(case: str) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(GARBAGE[case])
        head = await client.head()
        assert client.status == 400
        error = (await client.json())["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
        assert head.get(b"content-type") == b"application/json"
        await closes(client)
        assert gateway.server.connections.refused["invalid_request"] == 1


@pytest.mark.parametrize("lines", [b"gzip, chunked", b"gzip", b"gzip\r\nTransfer-Encoding: chunked"])
async def test_a_body_with_another_transfer_coding_is_501(lines: bytes) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding: %b\r\n\r\n0\r\n\r\n"
            % (CHAT.encode(), TYPE[0], lines)
        )
        head = await client.head()
        assert (client.status, head.get(b"connection")) == (501, b"close")
        assert (await client.json())["error"]["code"] == "unsupported_transfer_encoding"
        await closes(client)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost:{port}", b"evil.example", 200),
        ("http://127.0.0.1", b"localhost", 200),
        ("http://[::1]:{port}", b"localhost", 200),
        ("HTTP://localhost", b"localhost", 200),
        ("http://evil.example", b"localhost", 403),
        ("http://localhost@evil.example", b"localhost", 403),
        ("http://evil.example:{port}", b"localhost", 403),
    ],
)
async def test_host_of_an_absolute_target_is_what_counts(
    target: str, host: bytes, status: int, version: str
) -> None:
    """A page under a name that resolves to loopback could otherwise name another host in the header."""
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        asked = target.format(port=8080) + "/v1/models"
        await client.send(b"GET %b HTTP/%b\r\nHost: %b\r\n\r\n" % (asked.encode(), version.encode(), host))
        await client.head()
        assert client.status == status, await client.body()


async def test_http_1_0_needs_no_host() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(b"GET /health HTTP/1.0\r\n\r\n")
        await client.head()
        assert client.status == 200


# -- limits of time


async def test_a_head_that_takes_too_long_gets_a_408() -> None:
    """Sending one byte at a time does not prolong the limit."""
    fu = ScriptedUpstream()
    async with fu, serving(fu, header_timeout_s=0.2) as gateway, await gateway.client() as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        dripping = asyncio.create_task(drip(client, request_bytes("GET", "/health", line_of(5000))))
        await client.head()
        dripping.cancel()
        assert 0.15 < loop.time() - began < 0.6
        assert client.status == 408
        assert (await client.json())["error"]["code"] == "header_timeout"
        await closes(client)


async def drip(client: RawClient, data: bytes) -> None:
    for byte in data:
        await client.send(bytes([byte]))
        await asyncio.sleep(0.005)


async def test_a_slow_head_after_another_request_gets_a_408_too() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, header_timeout_s=0.1) as gateway, await gateway.client() as client:
        await client.request("GET", "/health")
        await client.body()
        await client.send(b"GET /hea")
        await client.head()
        assert client.status == 408


async def test_a_connection_that_sends_nothing_is_closed_without_an_answer() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, header_timeout_s=0.1) as gateway, await gateway.client() as client:
        await closes(client, within=0.5)


async def test_the_header_timeout_does_not_apply_to_a_slow_body() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    request = request_bytes("POST", CHAT, json=chat())
    async with fu, serving(fu, header_timeout_s=0.1) as gateway, await gateway.client() as client:
        await client.send(request[:-5])
        await asyncio.sleep(0.2)
        await client.send(request[-5:])
        await client.head()
        assert client.status == 200


@pytest.mark.slow
async def test_scenario_039_an_idle_connection_is_kept_for_its_time_and_no_longer() -> None:
    """The time may have fractions. Requests renew it; line ends do not."""
    fu = ScriptedUpstream()
    async with fu, serving(fu, keep_alive_s=0.3) as gateway, await gateway.client() as client:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await client.request("GET", "/health")
            await client.body()
            await asyncio.sleep(0.15)
        began = loop.time()
        await client.send(b"\r\n")
        await closes(client)
        assert loop.time() - began < 0.25


# -- the number of connections


@pytest.mark.parametrize("path", ["/v1/models", "/healthy", "/v1/chat/completions"])
async def test_a_connection_beyond_the_limit_gets_a_503(path: str) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu, serving(fu, max_connections=2) as gateway:
        async with await gateway.client() as first, await gateway.client() as second:
            await first.post(CHAT, chat())
            await second.post(CHAT, chat())
            async with await gateway.client() as third:
                head = await third.request("GET", path)
                assert third.status == 503
                error = (await third.json())["error"]
                assert (error["type"], error["code"]) == ("overloaded_error", "too_many_connections")
                assert int(head.get(b"retry-after") or 0) >= 1
                assert head.get(b"connection") == b"close"
                await closes(third)
        async with await gateway.client() as fourth:
            await gateway.until(lambda: gateway.idle)
            await fourth.request("GET", "/health")
            assert fourth.status == 200


async def test_the_longest_idle_connection_is_closed_for_a_new_one() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, max_connections=3) as gateway:
        clients = [await gateway.client() for _ in range(3)]
        for number in (1, 0, 2):
            await clients[number].request("GET", "/health")
            await clients[number].body()
        async with await gateway.client() as newcomer:
            await newcomer.request("GET", "/health")
            assert newcomer.status == 200
            await closes(clients[1], within=0.5)
            for number in (0, 2):
                await clients[number].request("GET", "/health")
                assert clients[number].status == 200
        for client in clients:
            client.close()


@pytest.mark.slow
async def test_many_silent_connections_are_limited_and_closed() -> None:
    """A few connections beyond the limit are closed after a second without a request, the rest at once."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu, serving(fu, max_connections=1) as gateway, await gateway.client() as first:
        await first.post(CHAT, chat())
        crowd = [await gateway.client() for _ in range(SPARE + 20)]
        connections = gateway.server.connections.connections
        await gateway.until(lambda: 1 < len(connections) <= 1 + SPARE, within=0.5)
        await gateway.until(lambda: len(connections) == 1, within=3)
        for client in crowd:
            client.close()


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_health_checks_and_operators_are_served_while_all_connections_are_in_use(limit: str) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    operator = {"operator_key_hashes": [hash_key("sg-op")]}
    async with fu, serving(fu, **{limit: 2}, **operator) as gateway:
        async with await gateway.client() as first, await gateway.client() as second:
            await first.post(CHAT, chat())
            await second.post(CHAT, chat())
            for path in ("/health", "/ready", "/metrics", "/admin/status"):
                async with await gateway.client() as probe:
                    head = await probe.request("GET", path, b"authorization: Bearer sg-op")
                    assert (path, probe.status) == (path, 200)
                    assert head.get(b"connection") == b"close"
                    await probe.body()
                    await closes(probe)


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_half_heads_lock_nobody_out(limit: str) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2, tokens=2))
    async with fu, serving(fu, **{limit: 8}) as gateway:
        crowd = [await gateway.client() for _ in range(20)]
        for client in crowd:
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a")
        assert len(gateway.server.connections.connections) <= 8 + SPARE
        async with await gateway.client() as client:
            await client.request("GET", "/v1/models")
            assert client.status == 200
        for client in crowd:
            client.close()


async def test_the_reserve_is_not_filled_by_connections_without_a_request() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu, serving(fu, max_connections=1) as gateway, await gateway.client() as first:
        await first.post(CHAT, chat())
        crowd = [await gateway.client() for _ in range(SPARE + 5)]
        for client in crowd[:5]:
            await client.send(b"GET /v1/models HTTP/1.1\r\n")
        async with await gateway.client() as probe:
            await probe.request("GET", "/health")
            assert probe.status == 200
        for client in crowd:
            client.close()


# -- upgrades

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")


@pytest.mark.parametrize("framing", ["one segment", "later segment", "byte by byte", "chunked"])
async def test_scenario_089_a_request_to_upgrade_to_h2c_is_served_with_its_whole_body(framing: str) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    body = orjson.dumps(chat("x" * 3000))
    request = request_bytes("POST", CHAT, *H2C, *TYPE, body=body)
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        if framing == "one segment":
            await client.send(request)
        elif framing == "later segment":
            await client.send(request[: -len(body)])
            await asyncio.sleep(0.02)
            await client.send(body)
        elif framing == "byte by byte":
            for position in range(len(request)):
                await client.send(request[position : position + 1])
                await asyncio.sleep(0)
        else:
            await client.send(request_bytes("POST", CHAT, *H2C, *CHUNKED) + chunked(body[:100]))
            await client.send(chunked(body[100:]) + b"0\r\n\r\n")
        head = await client.head()
        assert client.status == 200
        assert head.get(b"upgrade") is None
        assert [frame.data async for frame in client.frames()][-1] == DONE
        assert fu.generations[0].body == body
        await client.post(CHAT, chat())
        assert client.status == 200
        assert len(data_of([frame async for frame in client.frames()])) > 1


async def test_requests_to_upgrade_can_be_pipelined() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=2))
    request = request_bytes("POST", CHAT, *H2C, json=chat())
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request * 3 + HEALTH)
        for _ in range(3):
            await client.head()
            assert [frame.data async for frame in client.frames()][-1] == DONE
        await client.head()
        assert await client.json() == {"status": "ok"}


@pytest.mark.parametrize("protocol", [b"websocket", b"WebSocket"])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", ["/", CHAT, "/v1/models"])
async def test_scenario_102_a_websocket_is_refused_and_reaches_no_backend(
    target: str, method: str, protocol: bytes
) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        lines = (
            b"Connection: keep-alive, Upgrade",
            b"Upgrade: " + protocol,
            key,
            b"Sec-WebSocket-Version: 13",
        )
        await client.send(request_bytes(method, target, *lines, json=chat() if method == "POST" else None))
        await client.head()
        assert client.status == 404
        assert (await client.json())["error"]["code"] == "unknown_path"
        await closes(client)
    assert not fu.generations


# -- half a close


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_half_closes_counts_as_gone(*, stream: bool) -> None:
    """It looks like any client that leaves, so its generation ends at once and it gets no answer."""
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=chat(stream=stream)))
        await fu.generation()
        client.half_close()
        await upstream_closes(fu)
        await closes(client)


async def test_an_answer_given_before_the_half_close_arrives_completely() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=500))
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.post(CHAT, chat())
        await gateway.until(lambda: gateway.idle)
        client.half_close()
        assert [frame.data async for frame in client.frames()][-1] == DONE


async def test_an_answer_without_a_body_given_before_the_half_close_arrives() -> None:
    async def head_only(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        [protocol] = server.connections.connections
        protocol.eof_received()  # what the next look at the socket finds
        protocol.transport.close()

    async with serving_app(head_only) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("HEAD", "/"))
        await client.head()
        assert client.status == 204
        await closes(client)


async def test_a_client_that_half_closes_with_its_answer_unread_counts_as_gone_at_once() -> None:
    """The transport alone would first send all unsent bytes."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Flood(64 * 1024 * 1024)]})
    async with fu, serving(fu) as gateway, await gateway.client(receive_buffer=4096) as client:
        await client.post(CHAT, chat())
        client.stop_reading()
        await gateway.until(lambda: any(stalled(gateway)))
        client.half_close()
        await upstream_closes(fu)


def stalled(gateway: Gateway) -> list[bool]:
    return [protocol.flow.write_paused for protocol in gateway.server.connections.connections]  # type: ignore[union-attr]


# -- the head of an answer


class Spied:
    """A transport that keeps the bytes it is given to write."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The writes of all connections, one by one."""
    written: list[bytes] = []
    made = ClientConnection.connection_made

    def spied(protocol: ClientConnection, transport: asyncio.Transport) -> None:
        made(protocol, cast("asyncio.Transport", Spied(transport, written)))

    monkeypatch.setattr(ClientConnection, "connection_made", spied)
    return written


OK: Any = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize("pieces", [(b"a",), (b"a", b"b"), ()])
async def test_a_head_is_written_together_with_the_bytes_that_follow_it(
    pieces: tuple[bytes, ...], written: list[bytes]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        for _ in range(2):
            await client.send(HEALTH)
            await client.head()
            assert await client.body() == b"".join(pieces)
            assert client.clean_end
    first = b"1\r\na\r\n" if pieces else b"0\r\n\r\n"
    assert [data for data in written if data.startswith(b"HTTP/1.1 200")] == [written[0]] * 2
    assert written[0].endswith(b"\r\n\r\n" + first)


async def test_a_head_without_a_body_is_written_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await told.wait()
        await send({"type": "http.response.body", "body": b"late"})

    told = asyncio.Event()
    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        await client.send(HEALTH)
        await client.head()
        assert client.status == 200
        told.set()
        assert await client.body() == b"late"


async def test_a_head_is_written_before_garbage_closes_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        [protocol] = server.connections.connections
        cast("ClientConnection", protocol).data_received(b"zz\r\n")

    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        await client.request("POST", "/", *CHUNKED)
        assert client.status == 200
        assert await client.body() == b""
        assert client.clean_end is False


async def test_a_head_is_not_written_to_a_connection_that_was_cut() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        scope["extensions"]["slotgate.abort"]()
        assert (await receive())["type"] == "http.request"

    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        await client.send(HEALTH)
        await closes(client)
    assert client.received_bytes == 0


@pytest.mark.parametrize("how", ["hangs up", "fails"])
async def test_a_head_is_not_lost_when_the_connection_closes_after_it(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        if how == "fails":
            raise LookupError(how)
        scope["extensions"]["slotgate.hang_up"]()

    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        await client.send(HEALTH)
        await client.head()
        assert client.status == 200
        assert await client.body() == b""
        assert client.clean_end is False
    if how == "fails":
        caplog.clear()


@pytest.mark.parametrize("more", [b"", b"Connection: close"])
async def test_heads_of_pipelined_answers_without_a_body_come_in_order(more: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 204, "headers": [(b"x-path", scope["raw_path"])]}
        )
        await send({"type": "http.response.body"})

    asked = [
        request_bytes("GET", f"/{number}", *([more] if more and number == 4 else [])) for number in range(5)
    ]
    async with serving_app(app) as server, await RawClient.connect(server.url) as client:
        await client.send(b"".join(asked))
        for number in range(5):
            head = await client.head()
            assert (b"x-path", b"/%d" % number) in head.headers
            assert await client.body() == b""
        if more:
            await closes(client)


# -- closing


@pytest.mark.parametrize("half", [False, True], ids=["by the server", "by the client"])
async def test_a_client_that_does_not_read_cannot_keep_a_closing_connection_open(
    monkeypatch: pytest.MonkeyPatch, *, half: bool
) -> None:
    """uvicorn waits without a limit until all bytes are sent."""
    monkeypatch.setattr("slotgate.gateway.server.connection.FLUSH_S", 0.1)
    monkeypatch.setattr("slotgate.gateway.server.answer_delivery.STALL_TIMEOUT_S", 0.1)

    async def big(scope: Scope, receive: Receive, send: Send) -> None:
        """Send without waiting: the bytes that the kernel does not take stay in the transport."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 16_000_000})

    async with serving_app(big) as server, await RawClient.connect(server.url, receive_buffer=4096) as client:
        client.stop_reading()
        await client.send(request_bytes("GET", "/", *(() if half else (b"Connection: close",))))
        await asyncio.sleep(0.05)
        if half:
            client.half_close()
        assert await server.connections.gone(within=1)


async def test_an_error_in_a_request_does_not_get_into_an_answer_that_has_begun() -> None:
    """The application answers while the body is still coming. Then the body turns out to be invalid."""

    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving_app(early) as server, await RawClient.connect(server.url) as client:
        await client.request("POST", "/", *CHUNKED)
        await client.send(b"zz\r\n")
        assert await client.body() == b"begun"
        assert client.clean_end is False


async def test_an_application_that_reads_after_a_refusal_sees_that_the_client_is_gone() -> None:
    """A 100 Continue is still due. Writing it to a connection that is closed for writing would raise."""
    seen: list[str] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await refused.wait()
        seen.append((await receive())["type"])

    refused = asyncio.Event()
    async with serving_app(slow) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("POST", "/", *CHUNKED, b"Expect: 100-continue") + b"zz\r\n")
        await client.head()
        assert client.status == 400
        refused.set()
        await closes(client)
    assert seen == ["http.disconnect"]


async def test_an_application_that_fails_after_its_client_left_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        await left.wait()
        raise ValueError("too late")

    left = asyncio.Event()
    async with serving_app(fails) as server:
        async with await RawClient.connect(server.url) as client:
            await client.send(HEALTH)
            await client.head()
        assert await server.connections.gone(within=1)
        left.set()
    assert [record.getMessage() for record in caplog.records] == ["Exception in ASGI application\n"]
    caplog.clear()


# -- draining, as a connection sees it


async def test_a_request_whose_head_is_arriving_when_draining_begins_is_answered_as_the_last_one() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(HEALTH[:10])
        [protocol] = gateway.server.connections.connections
        await gateway.until(lambda: cast("ClientConnection", protocol).phase is ConnectionPhase.HEAD)
        gateway.server.connections.drain()
        await client.send(HEALTH[10:])
        head = await client.head()
        assert client.status == 200
        assert head.get(b"connection") == b"close"
        await client.body()
        await closes(client)


async def test_pipelined_requests_are_still_answered_when_draining_begins() -> None:
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), DONE) + b"0\r\n\r\n")]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM + HEALTH)
        await client.head()
        gateway.server.connections.drain()
        gate.event.set()
        await client.body()
        await client.head()
        assert client.status == 200
        await client.body()
        await closes(client)


async def test_draining_does_not_truncate_an_answer_after_which_too_much_came() -> None:
    gate = Gate()
    script: Script = [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), DONE) + b"0\r\n\r\n")]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        await client.send(STREAM + b"\x00garbage\r\n\r\n")
        await client.head()
        gateway.server.connections.drain()
        gate.event.set()
        assert [frame.data async for frame in client.frames()][-1] == DONE
        await closes(client)


# -- the date


async def test_every_response_has_a_date_and_no_server_header() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu) as gateway, await gateway.client() as client:
        head = await client.request("GET", "/health")
        assert (head.get(b"date") or b"").endswith(b" GMT")
        assert head.get(b"server") is None
