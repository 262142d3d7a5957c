"""Frames that the gateway makes itself are valid for clients that check each member."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from anthropic.types import ErrorResponse, RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from slotgate.gateway.api.dialects import FrameOptions, MessagesDialect, ResponsesDialect
from slotgate.gateway.http.errors import GatewayError
from tests.clients.scenes import events, tool_events
from tests.support.chat_chunks import PLAIN
from tests.support.chat_stream import ChatStream
from tests.support.gateway import CHAT
from tests.support.notation import STOP, USE
from tests.support.sse import data_of

OPTIONS = [FrameOptions(keepalive="chunk"), FrameOptions(keepalive="chunk", running_usage=True)]
FAILURE = GatewayError(502, "upstream_error", "upstream_truncated", "it was cut")
BOTH = b"data: " + PLAIN.chunk({"reasoning_content": "hm", "content": "x"}) + b"\n\n"


def chunks_of(frames: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(data_of(frame)) for frame in frames if b"data: {" in frame]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "running usage"])
@pytest.mark.parametrize(
    "told", [[BOTH, *events(CHAT)], tool_events(CHAT), [STOP, USE]], ids=["text", "tool", "none"]
)
def test_scenario_081_every_chunk_of_a_chat_has_the_members_that_clients_check(
    told: list[bytes], options: FrameOptions
) -> None:
    stream = ChatStream(options)
    for _ in range(2):
        stream.out.put(stream.frames.keepalive())
    stream.feed(*told)
    chunks = stream.chunks()
    assert len(chunks) >= 4
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert [choice["index"] for choice in chunk["choices"]] in ([0], [])
        assert all(choice["delta"].get("role", "assistant") == "assistant" for choice in chunk["choices"])


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_scenario_081_a_failure_of_messages_is_an_event_of_the_protocol(begun: int) -> None:
    stream = ChatStream(dialect=MessagesDialect)
    stream.feed(*events("/v1/messages")[:begun])
    stream.out.put(stream.frames.failure(FAILURE))
    *before, failure = chunks_of(stream.read())
    assert len(before) == begun
    ErrorResponse.model_validate(failure)
    for chunk in before:
        TypeAdapter(RawMessageStreamEvent).validate_python(chunk)


def test_scenario_081_events_that_are_added_to_responses_have_the_members_that_clients_check() -> None:
    stream = ChatStream(dialect=ResponsesDialect)
    given = tool_events("/v1/responses")
    stream.feed(*given)
    added = [chunk for chunk in chunks_of(stream.read()) if chunk["type"] == "response.content_part.added"]
    failed = ChatStream(dialect=ResponsesDialect)
    failed.out.put(failed.frames.failure(FAILURE))
    made = [*added, *chunks_of(failed.read())]
    assert [chunk["type"] for chunk in made] == ["response.content_part.added", "error"]
    for chunk in made:
        TypeAdapter(ResponseStreamEvent).validate_python(chunk)
