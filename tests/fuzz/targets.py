"""The targets: each takes any bytes, and raises an error only if a promise of the gateway is broken.

The first bytes of an input choose among variants (an endpoint, a dialect, where reads are cut), so one corpus
serves all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import tomllib
from collections.abc import Callable
from typing import Any

import httptools
import orjson
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from slotgate.gateway.api.dialects import FrameOptions
from slotgate.gateway.api.endpoints import ENDPOINTS, Endpoint
from slotgate.gateway.api.json_splice import splice
from slotgate.gateway.api.request import AddedOptions
from slotgate.gateway.api.request_options import MAX_KEY_BYTES, RequestOptions
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.http.context import RequestContext, TenantIdentity, attach, context_of
from slotgate.gateway.http.errors import ClientError, GatewayError
from slotgate.gateway.http.multipart import Form, boundary_of
from slotgate.gateway.http.sse import EventParser, SseEvent
from slotgate.gateway.server.request_head import check_target, without_upgrade
from slotgate.gateway.settings import ServerSettings, SettingsError, explain, parse
from slotgate.gateway.upstream.connection import UpstreamConnection
from slotgate.gateway.upstream.inflation import LEAST_INFLATED_BYTES
from slotgate.gateway.upstream.sink import End
from slotgate.middleware import LoopGuard, WebGuard
from slotgate.middleware.authentication import presented_keys
from tests.support.chat_stream import ChatStream

__all__ = ["TARGETS"]

_BOUNDARY = b"a-boundary"
_SHORT_BYTES = 1000
_TENANT = TenantIdentity("t", max_tokens_limit=100)
_JSON_ENDPOINTS = [endpoint for endpoint in ENDPOINTS if not endpoint.multipart]
_STREAMING = [endpoint for endpoint in ENDPOINTS if endpoint.body_format.streams]


def _cut(data: bytes, seed: int) -> list[bytes]:
    """Cut into pieces of pseudo-random lengths, mostly short ones."""
    borders, at = [0], 0
    while at < len(data) and len(borders) < 64:
        seed = (seed * 1103515245 + 12345) % 2**31
        at += 1 + (seed >> 16) % (8 if seed % 3 else 100)
        borders.append(min(at, len(data)))
    borders.append(len(data))
    return [data[start:end] for start, end in itertools.pairwise(borders) if start < end]


def _bytewise(data: bytes) -> list[bytes]:
    """Cut a short input at every place."""
    return [data[at : at + 1] for at in range(len(data))] if len(data) <= _SHORT_BYTES else [data]


def sse(data: bytes) -> None:
    """The events do not depend on where reads are cut, nor on the form of line ends."""
    seed, stream = sum(data[:2]), data[2:]

    def events(*pieces: bytes) -> list[SseEvent]:
        parser = EventParser()
        found = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
        assert parser.finish() == []
        return found

    whole = events(stream)
    assert whole == events(*_cut(stream, seed))
    assert whole == events(*_bytewise(stream))
    plain = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert whole == events(plain.replace(b"\n", b"\r\n"))


def frames(data: bytes) -> None:
    """Templates write what the general path writes, in every protocol, wherever reads are cut."""
    if len(data) < 3:
        return
    dialect = _STREAMING[data[0] % len(_STREAMING)].dialect
    options = FrameOptions(strip_timings=bool(data[1] & 1), withhold_usage=bool(data[1] & 2))

    def written(*bodies: bytes, learning: bool) -> tuple[bytes, int, bool, object]:
        stream = ChatStream(options, dialect=dialect, merge=False)
        for body in bodies:
            stream.frames.feed(body)
            if learning:
                stream.frames.learn()
        stream.frames.finish()
        stream.read()
        usage = stream.token_usage
        return stream.body, usage.deltas, stream.frames.sentinel, stream.frames.error

    body = data[2:]
    general = written(body, learning=False)
    assert general == written(*_cut(body, data[1]), learning=False)
    by_event = [piece for piece in body.replace(b"\n\n", b"\n\n\0").split(b"\0") if piece]
    if b"\0" not in body:
        assert general == written(*by_event, learning=True)
    assert general == written(*_cut(body, data[1]), learning=True)


def request(data: bytes) -> None:
    """A body is refused with a 4xx, or the backend gets it with only the gateway's own changes."""
    if not data:
        return
    endpoint = _JSON_ENDPOINTS[data[0] % len(_JSON_ENDPOINTS)]
    body = data[1:]
    sent = asyncio.run(_forwarded(endpoint, body))
    if sent is None:
        return
    before, after = orjson.loads(body), orjson.loads(sent)
    assert after["model"] == "theirs"
    assert "id_slot" not in after
    limits = [name for name in endpoint.body_format.limit_names if after.get(name) is not None]
    assert all(0 <= after[name] <= 100 for name in limits), after
    assert limits or not endpoint.body_format.generates
    ours = {"model", "id_slot", "stream_options", "response_fields", "timings_per_token", *limits}
    ours.add(endpoint.body_format.own_limit)
    assert {name: value for name, value in before.items() if name not in ours} == {
        name: value for name, value in after.items() if name not in ours
    }


async def _forwarded(endpoint: Endpoint, body: bytes) -> bytes | None:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    reader = RequestReader(ServerSettings())
    try:
        parsed = await reader.read(endpoint, {"type": "http", "headers": []}, receive)
        assert endpoint.body_format.prefix(parsed.members, b"") is not None
        assert parsed.parameters.cost(1.0, _TENANT) >= 0
        assert parsed.parameters.width(4) >= 1
        added = AddedOptions(usage=parsed.parameters.stream, timings=parsed.parameters.stream)
        sent = await reader.body_for_backend(parsed, _TENANT, "theirs", added)
    except ClientError as error:
        assert 400 <= error.status < 500
        assert len(error.body()) < 2000, "an error does not repeat what a client sent at length"
        return None
    return b"".join(sent)


def json_splice(data: bytes) -> None:
    """A spliced document parses as the updated object."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    if not isinstance(document, dict):
        return
    names = [*list(document)[:2], "new"]
    for changes in (dict.fromkeys(names, b'"x"'), dict.fromkeys(names), {names[0]: b"[1]"}):
        expected = {name: value for name, value in document.items() if name not in changes}
        expected |= {name: orjson.loads(value) for name, value in changes.items() if value is not None}
        assert orjson.loads(splice(data, changes)) == expected


class _Heads:
    """Collects the heads that llhttp accepts."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def headers(data: bytes) -> None:
    """Every head that the parser accepts is refused with an error of the tree, or understood."""
    head = _Heads()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(b"POST /v1/chat/completions HTTP/1.1\r\n" + data + b"\r\n\r\n")
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        return
    if not head.complete:
        return
    given = dict(head.headers)
    options = RequestOptions.from_headers(given)
    assert max(len(options.session), len(options.supersede_key)) <= MAX_KEY_BYTES
    options.session_key("t", {"prompt_cache_key": "k"})
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": head.headers}
    presented_keys(scope)
    for check in (_guarded, _without_upgrade, _boundary, _target):
        try:
            check(scope, given)
        except GatewayError as error:
            assert 400 <= error.status <= 508
            error.body()


def _guarded(scope: Scope, _: dict[bytes, bytes]) -> None:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        assert context_of(scope).via.isascii()

    async def nothing(*_: object) -> Any:  # noqa: ANN401
        raise AssertionError

    attach(scope, RequestContext("id", 0.0))
    app = LoopGuard(inner, b"0" * 16)
    guard = WebGuard(app, allowed_hosts=["gpu.lan"], allowed_origins=[], public_paths=frozenset())
    asyncio.run(guard(scope, nothing, nothing))


def _without_upgrade(scope: Scope, _: dict[bytes, bytes]) -> None:
    again = without_upgrade(b"POST", b"/x", "1.1", scope["headers"])
    parser = httptools.HttpRequestParser(_Heads())
    parser.feed_data(again)
    assert not parser.should_upgrade()


def _boundary(_: Scope, given: dict[bytes, bytes]) -> None:
    boundary = boundary_of(given.get(b"content-type", b""))
    assert 0 < len(boundary) <= 70


def _target(_: Scope, given: dict[bytes, bytes]) -> None:
    check_target(given.get(b"x-target", b"/"))


def multipart(data: bytes) -> None:
    """A form is read alike wherever it is cut, and passes on with only the changed fields changed."""
    seed, body = sum(data[:2]), data[2:]

    def read(*pieces: bytes) -> tuple[dict[str, Any], bytes] | None:
        form = Form(_BOUNDARY)
        try:
            for piece in pieces:
                form.feed(piece)
            form.finish()
        except ClientError:
            return None
        assert b"".join(form.changed({})) == b"".join(pieces)
        return form.members(), b"".join(form.changed({"model": b'"theirs"', "max_tokens": b"7"}))

    whole = read(body)
    assert whole == read(*_cut(body, seed))
    assert whole == read(*_bytewise(body))
    if whole is not None and "" not in (whole[0].get("model"), whole[0].get("max_tokens")):  # 404 and 400
        members, changed = whole
        again = read(changed)
        assert again is not None
        assert again[0]["model"] == "theirs" or isinstance(members.get("model"), list)
        assert again[0]["max_tokens"] == 7 or isinstance(members.get("max_tokens"), list)
        others = {name: value for name, value in members.items() if name not in ("model", "max_tokens")}
        assert others.items() <= again[0].items()


def configuration(data: bytes) -> None:
    """A file is refused with faults of one line each, or explained."""
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return
    try:
        settings = parse(document, {"SLOTGATE_SERVER__PORT": "1"} if data[:1] == b"#" else {})
    except SettingsError as error:
        assert error.faults
        assert all(len(str(fault).splitlines()) == 1 for fault in error.faults)
        return
    assert explain(settings).isprintable() or "\n" in explain(settings)
    repr(settings)


class _Answer:
    """A sink that keeps what it is told, and checks the order."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self.content = b""
        self.end: End | None = None

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.end is None
        self.heads.append((status, headers))

    def body(self, data: bytes) -> None:
        assert self.end is None
        assert self.heads
        self.content += data

    def read_over(self) -> None:
        assert self.end is None

    def ended(self, end: End) -> None:
        assert self.end is None
        self.end = end


class _Socket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the request."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def upstream(data: bytes) -> None:
    """A response ends once, as it was said, and reads the same wherever it is cut."""
    seed, response = sum(data[:2]), data[2:]
    whole = asyncio.run(_answered(response))
    assert len(whole.heads) <= 1
    assert len(whole.content) <= len(response) + LEAST_INFLATED_BYTES
    in_pieces = asyncio.run(_answered(*_cut(response, seed)))
    assert whole.end is in_pieces.end
    if whole.end is End.BROKEN:  # more of it was read before the fault if it came in pieces
        assert in_pieces.content.startswith(whole.content)
        return
    assert (whole.heads, whole.content) == (in_pieces.heads, in_pieces.content)


async def _answered(*reads: bytes) -> _Answer:
    connection, answer, peer = UpstreamConnection(asyncio.get_running_loop()), _Answer(), _Socket()
    connection.connection_made(peer)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", (), answer)
    with capture_logs() as lines:
        for read in reads:
            if not peer.closed:
                connection.data_received(read)
        connection.connection_lost(None)
    assert answer.end is not None
    assert lines == []
    return answer


TARGETS: dict[str, Callable[[bytes], None]] = {
    "upstream": upstream,
    "sse": sse,
    "frames": frames,
    "request": request,
    "json_splice": json_splice,
    "headers": headers,
    "multipart": multipart,
    "configuration": configuration,
}
