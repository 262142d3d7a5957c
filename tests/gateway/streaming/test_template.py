"""A template writes what the general path writes, byte for byte, or does not match."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotgate.gateway.api.chunks import TEXT_KINDS, Identity, data_frame, stamp_and_split
from slotgate.gateway.api.dialects import ChatDialect, FrameOptions
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.streaming.template import Template
from tests.support.chat_chunks import ESCAPES, PLAIN, Shape, shapes, texts

OURS = Identity("chatcmpl-ours", 1700000000, "public")
escapes = st.sampled_from(sorted(ESCAPES))


def learnt(payload: bytes) -> Template | None:
    return Template.learn(payload, orjson.loads(payload), ChatDialect(OURS, TokenUsage(), FrameOptions()))


def template_of(payload: bytes) -> Template:
    template = learnt(payload)
    assert template is not None
    return template


def by_the_general_path(payload: bytes) -> bytes:
    return b"".join(map(data_frame, stamp_and_split(orjson.loads(payload), OURS)))


def agrees(template: Template, payload: bytes) -> bool:
    """Return True if the template matches this payload. If so, both paths must write the same."""
    text = template.text_of(payload)
    assert text == template.text_of_event(b"data: " + payload + b"\n\n")
    if text is None:
        return False
    assert by_the_general_path(payload) == template.frame(text)
    return True


@given(shapes, texts, texts, escapes, escapes)
@example(PLAIN, ":", "x", "least", "least")
def test_a_template_writes_what_the_general_path_writes(
    shape: Shape, first: str, then: str, written: str, rewritten: str
) -> None:
    template = learnt(shape.payload(first, written))
    if template is not None:
        agrees(template, shape.payload(first, written))
        agrees(template, shape.payload(then, rewritten))
        agrees(template, shape.payload(then, rewritten, index=1))
        agrees(template, shape.payload(then, rewritten, finish_reason="stop"))


@given(shapes, texts, escapes)
def test_a_template_matches_every_text_of_its_stream(shape: Shape, text: str, written: str) -> None:
    template = learnt(shape.payload("some text that stands nowhere else"))
    assert template is not None
    assert agrees(template, shape.payload(text, written)) == bool(text)


@given(shapes, texts, st.data())
def test_a_template_never_writes_other_bytes_than_the_general_path(
    shape: Shape, text: str, data: st.DataObject
) -> None:
    template = template_of(shape.payload("some text"))
    payload = bytearray(shape.payload(text))
    for _ in range(data.draw(st.integers(1, 4))):
        at, end = sorted(data.draw(st.tuples(*[st.integers(0, len(payload))] * 2)))
        payload[at : min(end, at + 3)] = data.draw(st.one_of(st.binary(max_size=3), st.just(b'"')))
    agrees(template, bytes(payload))


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_the_kind_is_the_name_of_the_delta_field(kind: str) -> None:
    template = template_of(PLAIN.chunk({kind: "hello"}))
    assert (kind, b"hello") == (template.kind, template.text_of(PLAIN.chunk({kind: "hello"})))


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        'say "hi"',
        "back\\slash",
        "é\u2028\u0085",
        "😀",
        "\x00\x1f\x7f",
        "</think>",
        "\u2063slotgate\u2063",
    ],
)
@pytest.mark.parametrize("written", sorted(ESCAPES))
def test_a_text_is_written_in_one_form_whatever_its_escapes(text: str, written: str) -> None:
    template = template_of(PLAIN.payload("hello"))
    assert orjson.dumps(text)[1:-1] == template.text_of(PLAIN.payload(text, written))
    assert agrees(template, PLAIN.payload(text, written))


@pytest.mark.parametrize(
    "inside",
    [
        b"",  # an empty text is no output
        b'"',
        b"\\",
        b'a","b":"c',
        b'a"}}],"x":[{"y":{"content":"b',
        b"line\nbreak",
        b"\r",
        b"\x00",
        b"\xff",
        b"\xe2\x82",
        b"\\ud83d",
        b"\\x41",
        b'a"},"finish_reason":null}]}\n\ndata: {"choices":[{"index":0,"delta":{"content":"b',
    ],
)
def test_bytes_that_are_not_the_inside_of_one_json_string_do_not_match(inside: bytes) -> None:
    payload = PLAIN.payload("hello")
    assert not agrees(template_of(payload), payload.replace(b"hello", inside))


def test_two_events_in_one_read_do_not_match() -> None:
    event = b"data: " + PLAIN.payload("hello") + b"\n\n"
    template = template_of(PLAIN.payload("hello"))
    assert template.text_of_event(event) == b"hello"
    assert template.text_of_event(event + event) is None


def test_a_body_shorter_than_head_and_tail_does_not_match() -> None:
    payload = PLAIN.payload("hello")
    template = template_of(payload)
    for cut in range(len(payload)):
        assert not agrees(template, payload[:cut])
        assert not agrees(template, payload[cut + 1 :])
    head, _, tail = payload.partition(b'"hello"')
    assert not agrees(template, head + b'"' + tail)


@pytest.mark.parametrize("text", ["assistant", "content", "chat.completion.chunk", "index", ":", ",", "m"])
def test_no_template_is_learnt_if_the_text_occurs_twice_in_the_chunk(text: str) -> None:
    chunk = PLAIN.chunk({"content": text}, more={"role": "assistant", "name": "m", "more": "m"})
    assert learnt(chunk) is None


def test_a_text_that_looks_like_the_border_of_two_strings_is_not_learnt_wrongly() -> None:
    assert learnt(b'{"choices":[{"index":0,"delta":{"content":":"}}]}') is None
    assert learnt(b'{"choices":[{"index":0,"delta":{"content":","}}]}') is not None


@pytest.mark.parametrize("at_front", [True, False])
def test_a_marker_in_another_field_is_not_taken_for_the_text(at_front: bool) -> None:
    field = b'"system_fingerprint":"\xe2\x81\xa3slotgate\xe2\x81\xa3"'
    choices = b'"choices":[{"index":0,"delta":{"content":"hello"}}]'
    payload = b"{" + b",".join([field, choices] if at_front else [choices, field]) + b"}"
    template = learnt(payload)
    assert template is None or agrees(template, payload)


@pytest.mark.parametrize(
    "payload",
    [
        PLAIN.chunk({"content": ""}),
        PLAIN.chunk({"content": None}),
        PLAIN.chunk({"content": 1}),
        PLAIN.chunk({"content": ["hello"]}),
        PLAIN.chunk({}),
        PLAIN.chunk({"role": "assistant", "content": "hello"}),
        PLAIN.chunk({"content": "hello", "reasoning_content": "hm"}),
        PLAIN.chunk({"foo": "hello"}),
        PLAIN.chunk({"tool_calls": [{"index": 0, "function": {"arguments": "hello"}}]}),
        PLAIN.chunk({"content": "hello"}, index=1),
        PLAIN.chunk({"content": "hello"}, finish_reason="stop"),
        PLAIN.chunk({"content": "hello"}, logprobs={"content": []}),
        PLAIN.chunk({"content": "hello"}, more={"usage": {}}),
        PLAIN.chunk({"content": "hello"}, more={"timings": {"predicted_n": 1}}),
        PLAIN.chunk({"content": "hello"}, more={"prompt_progress": {"total": 1}}),
        PLAIN.chunk({"content": "hello"}, more={"error": ""}),
        b'{"choices":[]}',
        b'{"choices":{}}',
        b'{"choices":["hello"]}',
        b'{"choices":[{"index":0,"delta":["hello"]}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}',
    ],
)
def test_only_a_plain_delta_of_the_first_choice_is_learnt(payload: bytes) -> None:
    assert learnt(payload) is None


def test_the_repr_of_a_template_shows_kind_and_size() -> None:
    assert repr(template_of(PLAIN.payload("hello"))).startswith("<Template content ")
