"""Anthropic's messages: members that llama-server leaves out are added."""

from __future__ import annotations

import orjson
import pytest

from slotgate.gateway.api.dialects import MessagesDialect
from slotgate.gateway.api.dialects.dialect import named_frame
from tests.clients.scenes import events, tool_events
from tests.support.chat_stream import ChatStream
from tests.support.sse import data_of

PATH = "/v1/messages"


def blocks_of(said: list[bytes]) -> list[dict[str, object]]:
    stream = ChatStream(dialect=MessagesDialect)
    stream.feed(*said)
    chunks = [orjson.loads(data_of(frame)) for frame in stream.read()]
    return [chunk["content_block"] for chunk in chunks if "content_block" in chunk]


def test_a_tool_use_block_begins_with_an_empty_input() -> None:
    """Clients assemble the input from later events, so a call without arguments would have none."""
    assert [block.get("input") for block in blocks_of(tool_events(PATH))] == [None, {}]


def test_other_blocks_pass_unchanged() -> None:
    assert blocks_of(events(PATH)) == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("kind", ["a\ndata: {}\n\n", "a\r", "", 7, None, "x" * 65])
def test_a_type_with_other_characters_does_not_name_an_event(kind: object) -> None:
    frame = named_frame({"type": kind})
    assert frame.startswith(b"event: message\ndata: {")
    assert frame.count(b"\n") == 3


@pytest.mark.parametrize(
    "delta", [b'{"":"x"}', b'{"type":"","":"x"}', b'{"type":null}', b'{"type":[],"text":"x"}']
)
def test_a_delta_of_no_known_type_passes_and_fails_nothing(delta: bytes) -> None:
    event = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":%b}\n\n' % delta
    )
    stream = ChatStream(dialect=MessagesDialect)
    stream.feed(event)
    assert orjson.loads(data_of(stream.read()[0]))["delta"] == orjson.loads(delta)
