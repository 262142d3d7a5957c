"""Events of every protocol leave as they came and when they came, however their reads are cut."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slotgate.gateway.api.dialects import ChatDialect, Dialect, MessagesDialect, ResponsesDialect
from tests.clients.scenes import tool_events
from tests.support.chat_chunks import PLAIN
from tests.support.chat_stream import OURS, ChatStream
from tests.support.endpoints import STREAMING, Way
from tests.support.gateway import CHAT
from tests.support.notation import PING
from tests.support.sse import data_of

EACH_PROTOCOL = pytest.mark.parametrize(
    "way", [way for way in STREAMING if way.path == way.endpoint.paths[0]], ids=repr
)
TOOLS: dict[str, type[Dialect]] = {
    CHAT: ChatDialect,
    "/v1/responses": ResponsesDialect,
    "/v1/messages": MessagesDialect,
}
EACH_WITH_TOOLS = pytest.mark.parametrize("path", TOOLS)


def stream_of(way: Way) -> ChatStream:
    return ChatStream(dialect=way.endpoint.dialect)


def read_of(dialect: type[Dialect], *reads: bytes) -> list[bytes]:
    """Return the client's frames for these reads of a stream."""
    stream = ChatStream(dialect=dialect)
    stream.feed(*reads)
    return stream.read()


def chunks_of(frames: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(data_of(frame)) for frame in frames if b"data: {" in frame]


@EACH_PROTOCOL
def test_scenario_047_the_frames_of_every_protocol_do_not_depend_on_the_reads(way: Way) -> None:
    body = b"".join(way.sample.events)
    dialect = way.endpoint.dialect
    expected = read_of(dialect, body)
    assert len(expected) >= len(way.sample.events) - 1
    assert read_of(dialect, *way.sample.events) == expected
    assert read_of(dialect, *(bytes([byte]) for byte in body)) == expected
    for offset in range(1, len(body), 11):
        assert read_of(dialect, body[:offset], body[offset:]) == expected, offset


@EACH_PROTOCOL
def test_scenario_041_a_comment_of_three_bytes_leaves_at_once(way: Way) -> None:
    stream = stream_of(way)
    *before, _ = way.sample.events
    stream.feed(*before)
    for _ in range(3):
        already = len(stream.read())
        stream.feed(PING)
        assert len(stream.read()) == already + 1


@EACH_WITH_TOOLS
def test_scenario_066_each_piece_of_a_tool_call_leaves_when_it_comes(path: str) -> None:
    """No piece waits for the rest of the call, also in a request that has tools."""
    stream = ChatStream(dialect=TOOLS[path])
    passed = set()
    *events, _ = tool_events(path)
    for event in events:
        already = len(stream.read())
        stream.feed(event)
        sent = b"".join(stream.read()[already:])
        for piece in (b"city", b"Oslo"):
            assert piece not in event or piece in sent, event
            passed |= {piece} if piece in sent else set()
    assert passed == {b"city", b"Oslo"}


ODD_CALLS: list[dict[str, Any]] = [
    # The first piece has everything, and the arguments begin in it.
    {
        "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
        ]
    },
    # The name is repeated, and the content is null.
    {"content": None, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '"say":"'}}]},
    # The pieces are cut inside an escape of the arguments.
    {"tool_calls": [{"index": 0, "function": {"arguments": "\\"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"hi\\ud83d'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "\\ude00 안녕"}}]},
    # A second call begins before the first one is over.
    {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
    {
        "tool_calls": [
            {"index": 0, "function": {"arguments": '"}'}},
            {"index": 1, "function": {"arguments": "{}"}},
        ]
    },
]


def test_scenario_083_odd_pieces_of_tool_calls_pass_unchanged() -> None:
    """Plain text stands between them, so that the stream has a fast path."""
    plain = PLAIN.chunk({"content": "hi"})
    payloads = [plain, plain, *(part for call in ODD_CALLS for part in (PLAIN.chunk(call), plain))]
    ours = {"id": OURS.id, "created": OURS.created, "model": OURS.model}
    expected = [b"data: " + orjson.dumps(orjson.loads(one) | ours) + b"\n\n" for one in payloads]
    body = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    assert read_of(ChatDialect, body) == expected
    for offset in range(1, len(body), 5):
        assert read_of(ChatDialect, body[:offset], body[offset:]) == expected, offset


@EACH_WITH_TOOLS
def test_scenario_083_tool_calls_of_every_protocol_keep_all_their_members(path: str) -> None:
    """The gateway adds members and events that the protocol demands. It takes none away.

    The last event is left out, because it leaves only when the backend has ended its message.
    """
    *events, _ = tool_events(path)
    sent = iter(chunks_of(read_of(TOOLS[path], *events)))
    for given in chunks_of(events):
        assert any(_keeps(given, chunk) for chunk in sent), given


OWN = ("id", "created", "model", "created_at")


def _keeps(before: object, after: object) -> bool:
    if isinstance(before, dict):
        return isinstance(after, dict) and all(
            name in OWN or (name in after and _keeps(value, after[name])) for name, value in before.items()
        )
    if isinstance(before, list):
        return isinstance(after, list) and len(before) == len(after) and all(map(_keeps, before, after))
    return before == after
