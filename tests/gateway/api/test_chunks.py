"""A parsed chunk gets our identity and one kind per frame. Everything else stays as it came."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.chunks import (
    REASONING_KINDS,
    TEXT_KINDS,
    Identity,
    data_frame,
    has_output,
    stamp_and_split,
)
from tests.support.chat_chunks import PLAIN, Shape, shapes, texts

Json = dict[str, Any]
OURS = Identity("chatcmpl-ours", 1700000000, "public")


def rewritten(payload: bytes) -> list[Json]:
    return stamp_and_split(orjson.loads(payload), OURS)


def delta_of(chunk: Json, choice: int = 0) -> Json:
    delta: Json = chunk["choices"][choice]["delta"]
    return delta


@given(shapes, texts)
def test_only_the_identity_changes_and_fields_keep_their_order(shape: Shape, text: str) -> None:
    payload = shape.payload(text)
    theirs = orjson.loads(payload)
    [ours] = rewritten(payload)
    assert theirs | {"id": OURS.id, "created": OURS.created, "model": OURS.model} == ours
    assert list(theirs) == list(ours)[: len(theirs)]


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "x"},
        {"foo": 1},
        {"reasoning_content": "x", "content": ""},
        {"reasoning_content": "x", "content": None},
        {
            "content": None,
            "tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":"'}}],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "\\"}}]},
    ],
)
def test_fields_of_a_delta_pass_untouched(delta: Json) -> None:
    [ours] = rewritten(PLAIN.chunk(delta))
    assert delta == delta_of(ours)


@pytest.mark.parametrize("kind", REASONING_KINDS)
def test_scenario_082_reasoning_and_content_leave_as_two_chunks(kind: str) -> None:
    mixed = PLAIN.chunk({"role": "assistant", kind: "hm</think>", "content": "Hi"}, finish_reason="stop")
    reasoning, content = rewritten(mixed)
    assert {"role": "assistant", kind: "hm</think>"} == delta_of(reasoning)
    assert delta_of(content) == {"content": "Hi"}
    assert reasoning["choices"][0]["finish_reason"] is None
    assert content["choices"][0]["finish_reason"] == "stop"
    assert (OURS.id, OURS.id) == (reasoning["id"], content["id"])


def test_usage_and_timings_stay_with_the_last_of_two_chunks() -> None:
    once = {"usage": {"completion_tokens": 1}, "timings": {"predicted_n": 1}}
    mixed = PLAIN.chunk({"reasoning": "hm", "content": "Hi"}, more=once, logprobs={"content": [1]})
    reasoning, content = rewritten(mixed)
    assert not once.keys() & reasoning.keys()
    assert once == {name: content[name] for name in once}
    assert [chunk["choices"][0]["logprobs"] for chunk in (reasoning, content)] == [None, {"content": [1]}]


def test_only_choices_that_mix_kinds_are_in_both_chunks() -> None:
    both = {"index": 1, "delta": {"content": "Hi", "reasoning": "hm"}, "finish_reason": None}
    one = {"index": 0, "delta": {"content": "A"}, "finish_reason": None}
    reasoning, content = rewritten(orjson.dumps({"choices": [one, both]}))
    assert [(c["index"], c["delta"]) for c in reasoning["choices"]] == [(1, {"reasoning": "hm"})]
    assert [(c["index"], c["delta"]) for c in content["choices"]] == [
        (0, {"content": "A"}),
        (1, {"content": "Hi"}),
    ]


@given(shapes, texts, texts, st.sampled_from(REASONING_KINDS))
def test_no_chunk_carries_reasoning_and_content(shape: Shape, text: str, thought: str, kind: str) -> None:
    chunks = rewritten(shape.chunk({"content": text, kind: thought}))
    deltas = [delta_of(chunk) for chunk in chunks]
    assert not [delta for delta in deltas if delta.get("content") and delta.get(kind)]
    assert text == "".join(delta.get("content", "") for delta in deltas)
    assert thought == "".join(delta.get(kind, "") for delta in deltas)
    for chunk in chunks:
        assert list(orjson.loads(shape.chunk({}))["choices"][0]) == list(chunk["choices"][0])


@pytest.mark.parametrize(
    "payload",
    [b"{}", b'{"choices":null}', b'{"choices":[]}', b'{"choices":[1]}', b'{"choices":[{"delta":1}]}'],
)
def test_only_the_identity_of_a_malformed_chunk_changes(payload: bytes) -> None:
    [ours] = rewritten(payload)
    assert orjson.loads(payload) | {"id": OURS.id, "created": OURS.created, "model": OURS.model} == ours
    assert not has_output(ours)


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_text_of_any_kind_is_output(kind: str) -> None:
    assert has_output(orjson.loads(PLAIN.chunk({kind: "x"})))
    assert not has_output(orjson.loads(PLAIN.chunk({kind: ""})))


def test_a_tool_call_is_output_and_a_role_is_not() -> None:
    assert has_output(orjson.loads(PLAIN.chunk({"content": None, "tool_calls": [{"index": 0}]})))
    assert not has_output(orjson.loads(PLAIN.chunk({"role": "assistant", "content": None})))
    assert not has_output({"choices": [{"delta": {}}, "odd"]})


def test_a_frame_is_one_data_line() -> None:
    assert data_frame({"a": "é\n\u2028"}) == 'data: {"a":"é\\n\u2028"}\n\n'.encode()
