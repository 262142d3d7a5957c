"""Members that official clients of Responses need and llama-server leaves out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slotgate.gateway.api.dialects import ResponsesDialect
from slotgate.gateway.http.errors import UpstreamError
from tests.clients.scenes import CALL, THOUGHT, WORDS, events, tool_events
from tests.support.chat_stream import OURS, ChatStream
from tests.support.sse import data_of

Json = dict[str, Any]
PATH = "/v1/responses"


def told(said: list[bytes]) -> list[Json]:
    """Return the frames for these events. The last frame waits for the end of the upstream."""
    stream = ChatStream(dialect=ResponsesDialect)
    stream.feed(*said)
    frames = [*stream.read(), *([stream.frames.terminal] if stream.frames.terminal else [])]
    return [orjson.loads(data_of(frame)) for frame in frames]


@pytest.mark.parametrize("said", [events(PATH), tool_events(PATH)], ids=["text", "tool"])
def test_missing_sequence_numbers_models_times_and_outputs_are_added(said: list[bytes]) -> None:
    left = told(said)
    assert [event["sequence_number"] for event in left] == list(range(len(left)))
    responses = [event["response"] for event in left if "response" in event]
    assert {response["model"] for response in responses} == {OURS.model}
    assert [response["output"] for response in responses[:2]] == [[], []]
    assert all("created_at" in response for response in responses)
    assert responses[-1]["output"]


def test_text_events_have_the_indexes_of_their_item_and_part() -> None:
    deltas = [event for event in told(events(PATH)) if event["type"] == "response.output_text.delta"]
    assert [event["delta"] for event in deltas] == WORDS
    assert {(event["output_index"], event["content_index"]) for event in deltas} == {(0, 0)}


def test_the_missing_beginning_of_a_reasoning_part_is_added_once() -> None:
    left = [event for event in told(tool_events(PATH)) if event.get("output_index") == 0]
    assert [event["type"].removeprefix("response.") for event in left] == [
        "output_item.added",
        "content_part.added",
        *["reasoning_text.delta"] * len(THOUGHT),
        "output_item.done",
    ]
    assert {event["content_index"] for event in left[1:-1]} == {0}
    assert left[1]["part"] == {"type": "reasoning_text", "text": ""}


def test_no_second_beginning_of_a_reasoning_part_is_added() -> None:
    said = tool_events(PATH)
    begins = next(frame for event, frame in zip(told(said), framed(said), strict=True) if "part" in event)
    at = next(index for index, event in enumerate(said) if b"reasoning_text.delta" in event)
    kinds = [event["type"] for event in told([*said[:at], begins, *said[at:]])]
    assert kinds.count("response.content_part.added") == 1


def framed(said: list[bytes]) -> list[bytes]:
    stream = ChatStream(dialect=ResponsesDialect)
    stream.feed(*said)
    return [*stream.read(), stream.frames.terminal]


def test_every_function_call_has_the_id_that_its_arguments_name() -> None:
    left = told(tool_events(PATH))
    pieces = [event for event in left if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in pieces) == CALL[1]
    [named] = {event["item_id"] for event in pieces}
    assert {event["output_index"] for event in pieces} == {1}
    items = [event["item"] for event in left if "item" in event] + left[-1]["response"]["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [call["id"] for call in calls] == [named] * 3


def test_an_output_that_is_not_a_list_passes() -> None:
    created = events(PATH)[0].replace(b'"status":', b'"output":null,"status":')
    assert told([created])[0]["response"]["output"] is None


def test_an_error_before_the_response_has_the_member_that_clients_raise_for() -> None:
    """They look for a member `error`; the standard event has code and message beside its type."""
    stream = ChatStream(dialect=ResponsesDialect)
    failure = stream.frames.failure(UpstreamError("upstream_truncated", "cut"))
    event = orjson.loads(data_of(failure))
    assert (event["type"], event["code"], event["message"], event["sequence_number"]) == (
        "error",
        "upstream_truncated",
        "cut",
        0,
    )
    assert event["error"]["code"] == "upstream_truncated"
