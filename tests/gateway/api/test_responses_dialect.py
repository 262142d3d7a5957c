"""What official clients of Responses build on, and llama-server leaves out."""

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
    """What leaves for these events, the last of which waits for the end of the upstream."""
    stream = ChatStream(dialect=ResponsesDialect)
    stream.feed(*said)
    frames = [*stream.read(), *([stream.frames.terminal] if stream.frames.terminal else [])]
    return [orjson.loads(data_of(frame)) for frame in frames]


@pytest.mark.parametrize("said", [events(PATH), tool_events(PATH)], ids=["text", "tool"])
def test_every_event_has_its_number_and_every_response_its_model_time_and_output(said: list[bytes]) -> None:
    left = told(said)
    assert [event["sequence_number"] for event in left] == list(range(len(left)))
    responses = [event["response"] for event in left if "response" in event]
    assert {response["model"] for response in responses} == {OURS.model}
    assert [response["output"] for response in responses[:2]] == [[], []]
    assert all("created_at" in response for response in responses)
    assert responses[-1]["output"]


def test_a_text_says_which_item_and_which_part_it_belongs_to() -> None:
    deltas = [event for event in told(events(PATH)) if event["type"] == "response.output_text.delta"]
    assert [event["delta"] for event in deltas] == WORDS
    assert {(event["output_index"], event["content_index"]) for event in deltas} == {(0, 0)}


def test_a_part_of_reasoning_begins_once_before_its_first_text() -> None:
    left = [event for event in told(tool_events(PATH)) if event.get("output_index") == 0]
    assert [event["type"].removeprefix("response.") for event in left] == [
        "output_item.added",
        "content_part.added",
        *["reasoning_text.delta"] * len(THOUGHT),
        "output_item.done",
    ]
    assert {event["content_index"] for event in left[1:-1]} == {0}
    assert left[1]["part"] == {"type": "reasoning_text", "text": ""}


def test_a_part_of_reasoning_that_has_begun_is_left_alone() -> None:
    said = tool_events(PATH)
    begins = next(frame for event, frame in zip(told(said), framed(said), strict=True) if "part" in event)
    at = next(index for index, event in enumerate(said) if b"reasoning_text.delta" in event)
    kinds = [event["type"] for event in told([*said[:at], begins, *said[at:]])]
    assert kinds.count("response.content_part.added") == 1


def framed(said: list[bytes]) -> list[bytes]:
    stream = ChatStream(dialect=ResponsesDialect)
    stream.feed(*said)
    return [*stream.read(), stream.frames.terminal]


def test_a_call_has_the_id_by_which_its_arguments_name_it_wherever_it_stands() -> None:
    left = told(tool_events(PATH))
    pieces = [event for event in left if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in pieces) == CALL[1]
    [named] = {event["item_id"] for event in pieces}
    assert {event["output_index"] for event in pieces} == {1}
    items = [event["item"] for event in left if "item" in event] + left[-1]["response"]["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [call["id"] for call in calls] == [named] * 3


def test_an_output_that_is_no_list_passes() -> None:
    created = events(PATH)[0].replace(b'"status":', b'"output":null,"status":')
    assert told([created])[0]["response"]["output"] is None


def test_an_error_before_the_response_is_what_clients_raise_for() -> None:
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
