"""Upstream bytes become the client's frames: the same on every path, however the reads are cut."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.chunks import TEXT_KINDS, data_frame, stamp_and_split
from slotgate.gateway.api.dialects import (
    DONE,
    Dialect,
    FrameOptions,
    KeepAlive,
    MessagesDialect,
    NativeDialect,
    ResponsesDialect,
)
from slotgate.gateway.api.dialects.dialect import KEEPALIVE_COMMENT
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.http.sse import MAX_EVENT_BYTES
from tests.support.chat_chunks import ESCAPES, PLAIN, Shape, shapes, texts
from tests.support.chat_stream import OURS, ChatStream
from tests.support.llama_frames import chat_events
from tests.support.notation import STOP, USE, T

Json = dict[str, Any]
ROLE = b"data: " + PLAIN.chunk({"role": "assistant", "content": None}) + b"\n\n"
OWN_ROLE = data_frame(
    {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}],
        "created": OURS.created,
        "id": OURS.id,
        "model": OURS.model,
        "object": "chat.completion.chunk",
    }
)
OWN_CHUNK = OWN_ROLE.replace(b'{"role":"assistant","content":null}', b"{}")


def event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def by_the_general_path(*payloads: bytes) -> list[bytes]:
    """Parse, stamp and write each chunk: this is how every plain chunk must come out."""
    return [data_frame(part) for payload in payloads for part in stamp_and_split(orjson.loads(payload), OURS)]


def cut(stream: bytes, offsets: list[int]) -> list[bytes]:
    borders = [0, *sorted(offset % (len(stream) + 1) for offset in offsets), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(borders)]


MOSTLY_PLAIN: list[Json] = [
    {},
    {},
    {},
    {"created": 2},
    {"index": 1},
    {"finish_reason": "stop"},
    {"logprobs": {"content": []}},
]


@st.composite
def plain_streams(draw: st.DrawFn) -> list[bytes]:
    """Payloads of one upstream: mostly plain deltas, and sometimes another chunk."""
    shape = draw(shapes)
    other = Shape(draw(st.sampled_from(TEXT_KINDS)), shape.top, shape.choice, shape.extra, shape.spaced)
    payloads = []
    for text, escape in draw(st.lists(st.tuples(texts, st.sampled_from(sorted(ESCAPES))), max_size=8)):
        form = draw(st.sampled_from([shape, shape, other]))
        payloads.append(form.payload(text, escape, **draw(st.sampled_from(MOSTLY_PLAIN))))
    return payloads


# One result on every way


@given(plain_streams(), st.lists(st.integers(0, 5000), max_size=8))
def test_every_path_writes_what_the_general_path_writes(payloads: list[bytes], offsets: list[int]) -> None:
    expected = by_the_general_path(*payloads)
    events = [event(payload) for payload in payloads]

    one_a_read, all_in_one_read, anyhow = ChatStream(), ChatStream(), ChatStream()
    one_a_read.feed(*events)
    all_in_one_read.feed(b"".join(events))
    anyhow.feed(*cut(b"".join(events), offsets))

    assert expected == one_a_read.read() == all_in_one_read.read() == anyhow.read()
    deltas = [s.token_usage.deltas for s in (one_a_read, all_in_one_read, anyhow)]
    assert [deltas[0]] * 3 == deltas


@given(plain_streams())
def test_a_frame_has_the_upstreams_fields_and_the_gateways_identity(payloads: list[bytes]) -> None:
    stream = ChatStream()
    stream.feed(*map(event, payloads))
    ours = {"id": OURS.id, "created": OURS.created, "model": OURS.model}
    assert [orjson.loads(payload) | ours for payload in payloads] == stream.chunks()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_scenario_047_the_output_does_not_depend_on_where_reads_are_cut(line_end: bytes) -> None:
    body = b"".join([T("안녕"), T("하세요😀é"), STOP, USE, DONE])
    whole = ChatStream()
    whole.feed(body)
    expected = whole.read()
    body = body.replace(b"\n", line_end)
    for offset in range(len(body) + 1):
        stream = ChatStream()
        stream.feed(body[:offset], body[offset:])
        assert expected == stream.read()
        assert (stream.frames.sentinel, stream.token_usage.deltas, stream.token_usage.completed) == (
            True,
            2,
            2,
        )


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_of_llama_server_gets_the_gateways_identity(include_usage: bool) -> None:
    events = chat_events(["a", " b", "é", ' "c"'], "/srv/m.gguf", "length", include_usage=include_usage)
    stream = ChatStream()
    stream.feed(*events)
    stream.frames.finish()
    assert by_the_general_path(*(event[6:-2] for event in events[:-1])) == stream.read()
    assert stream.frames.sentinel
    assert (
        stream.token_usage.prompt_tokens,
        stream.token_usage.cached_tokens,
        stream.token_usage.completed,
    ) == (31, 30, 4)


def test_scenario_051_a_raw_line_separator_inside_a_text_does_not_end_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x7fe"
    stream = ChatStream()
    stream.feed(T("x"), T(text), T("\u2028") + T("\u0085"))
    assert len(stream.read()) == 4
    assert "x" + text + "\u2028\u0085" == stream.text()


def test_events_after_the_sentinel_are_not_read() -> None:
    stream = ChatStream()
    stream.feed(T("a"), T("b"), DONE + T("c"))
    stream.feed(T("d"))
    stream.frames.finish()
    assert stream.text() == "ab"
    assert (stream.frames.sentinel, stream.token_usage.deltas) == (True, 2)


def test_scenario_055_a_sentinel_without_its_blank_line_counts() -> None:
    stream = ChatStream()
    stream.feed(T("a"), b"data: [DONE]")
    stream.frames.finish()
    assert stream.frames.sentinel


def test_a_last_chunk_without_its_blank_line_counts_if_it_is_whole() -> None:
    stream = ChatStream()
    stream.feed(T("a"), T("b").rstrip())
    stream.frames.finish()
    assert stream.text() == "ab"


@pytest.mark.parametrize("rest", [T("b")[:-20], b"data: [DO", b"data: nul", b'error: {"code":50', b"data: 1"])
def test_scenario_056_an_incomplete_event_is_not_passed_on(rest: bytes) -> None:
    stream = ChatStream()
    stream.feed(T("a"), rest)
    stream.frames.finish()
    assert by_the_general_path(T("a")[6:-2]) == stream.read()
    assert (stream.frames.sentinel, stream.frames.error) == (False, None)


def test_a_comment_and_a_large_event_count_without_their_blank_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgate.gateway.http.sse.MAX_EVENT_BYTES", 40)
    stream = ChatStream()
    stream.feed(T("a"), b": ping")
    stream.frames.finish()
    assert stream.read()[1:] == [b": ping\n\n"]
    stream.feed(b"data: " + b"x" * 50 + b"\n")
    stream.frames.finish()
    assert stream.out.unread == len(b"data: ") + 50


def test_the_times_of_the_first_output_and_the_last_event_are_kept() -> None:
    stream = ChatStream()
    assert (stream.frames.first_output_at, stream.frames.last_event_at) == (None, None)
    for at, body in [
        (1.0, b":\n\n"),
        (2.0, ROLE),
        (3.0, event(PLAIN.chunk({"reasoning": "hm"}))),
        (4.0, T("a")),
    ]:
        stream.now = at
        stream.feed(body)
    stream.now = 5.0
    stream.feed(T("b"))
    assert (stream.frames.first_output_at, stream.frames.last_event_at) == (3.0, 5.0)


def test_a_comment_does_not_count_as_an_event() -> None:
    stream = ChatStream()
    stream.feed(b": ping\n\n", b":\n\n")
    assert (stream.frames.parsed, stream.frames.last_event_at) == (0, None)


# Kinds are never mixed


@pytest.mark.parametrize("merge", [True, False])
def test_scenario_082_reasoning_and_content_become_two_frames(merge: bool) -> None:
    stream = ChatStream(merge=merge)
    stream.feed(T("a"), event(PLAIN.chunk({"reasoning_content": "hm</think>", "content": "Hi"})))
    deltas = [chunk["choices"][0]["delta"] for chunk in stream.chunks()]
    assert deltas == [{"content": "a"}, {"reasoning_content": "hm</think>"}, {"content": "Hi"}]


@given(plain_streams(), st.booleans())
def test_a_slow_client_reads_the_same_text(payloads: list[bytes], merge: bool) -> None:
    live, behind = ChatStream(), ChatStream(merge=merge)
    live.feed(T("."), *map(event, payloads))
    behind.feed(T("."))
    with behind.client_behind():
        behind.feed(*map(event, payloads))
    for kind, index in itertools.product(TEXT_KINDS, (0, 1)):
        assert live.text(kind, index) == behind.text(kind, index)
    assert apart(live) == apart(behind)
    if not merge:
        assert live.read() == behind.read()


def apart(stream: ChatStream) -> list[Json]:
    """The chunks that must not be merged."""
    return [
        chunk
        for chunk in stream.chunks()
        if chunk["choices"][0]["index"]
        or any(chunk["choices"][0].get(n) for n in ("finish_reason", "logprobs"))
    ]


def test_deltas_of_one_kind_are_merged_while_the_client_is_behind() -> None:
    stream = ChatStream()
    stream.feed(T("a"), T("b"))
    with stream.client_behind():
        stream.feed(T("c"), T('"d"'), T("é"), T("\\"))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in stream.chunks()] == ["a", "b", 'c"d"é\\']


BORDERS = {
    "kind": event(PLAIN.chunk({"reasoning_content": "-"})),
    "tool call": event(PLAIN.chunk({"tool_calls": [{"index": 0, "function": {"arguments": "-"}}]})),
    "refusal": event(PLAIN.chunk({"refusal": "-"})),
    "choice": event(PLAIN.payload("-", index=1)),
    "finish reason": event(PLAIN.payload("-", finish_reason="length")),
    "log probabilities": event(PLAIN.payload("-", logprobs={"content": [{"token": "-"}]})),
    "usage": event(PLAIN.chunk({"content": "-"}, more={"usage": {"completion_tokens": 1}})),
    "timings": event(PLAIN.chunk({"content": "-"}, more={"timings": {"predicted_n": 1}})),
    "other fields of the delta": event(PLAIN.chunk({"content": "-", "foo": 1})),
    "not JSON": b"data: -\n\n",
}


@pytest.mark.parametrize("border", BORDERS.values(), ids=BORDERS.keys())
def test_deltas_are_not_merged_across_another_frame(border: bytes) -> None:
    stream = ChatStream()
    stream.feed(event(PLAIN.payload("a")))
    with stream.client_behind():
        stream.feed(*(event(PLAIN.payload(text)) for text in "bc"))
        stream.feed(border)
        stream.feed(*(event(PLAIN.payload(text)) for text in "de"))
    first, before, between, after = stream.read()
    assert by_the_general_path(*map(PLAIN.payload, ("a", "bc", "de"))) == [first, before, after]
    alone = ChatStream()
    alone.feed(border)
    assert [between] == alone.read()


def test_every_delta_is_its_own_frame_if_merging_is_off() -> None:
    stream = ChatStream(merge=False)
    stream.feed(T("a"))
    with stream.client_behind():
        stream.feed(T("b"), T("c"))
    assert by_the_general_path(*(T(text)[6:-2] for text in "abc")) == stream.read()


# Keep-alives


def test_keepalives_of_comment_form_are_always_comments() -> None:
    stream = ChatStream(FrameOptions(keepalive="comment"))
    assert stream.frames.keepalive() == KEEPALIVE_COMMENT == b": keep-alive\n\n"
    stream.feed(ROLE, T("a"))
    assert stream.frames.keepalive() == KEEPALIVE_COMMENT


def test_the_first_chunk_keepalive_has_the_role_and_none_follows_the_first_output() -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    assert stream.frames.keepalive() == OWN_ROLE + OWN_CHUNK
    assert stream.frames.keepalive() == OWN_CHUNK
    stream.feed(ROLE)
    assert stream.frames.keepalive() == OWN_CHUNK
    stream.feed(event(PLAIN.chunk({"content": ""})))
    assert stream.frames.keepalive() == OWN_CHUNK
    stream.feed(T("a"))
    assert stream.frames.keepalive() == b""


@pytest.mark.parametrize(
    "output",
    [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"content": "a"}, {"refusal": "no"}],
)
def test_any_output_ends_chunk_keepalives(output: Json) -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    stream.feed(event(PLAIN.chunk(output)))
    assert stream.frames.keepalive() == b""


def test_the_upstreams_role_chunk_is_dropped_if_a_keepalive_had_the_role() -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    stream.out.put(stream.frames.keepalive())
    stream.feed(ROLE, T("a"))
    assert [OWN_ROLE, OWN_CHUNK, *by_the_general_path(T("a")[6:-2])] == stream.read()


@pytest.mark.parametrize(
    "kept",
    [
        PLAIN.chunk({"role": "assistant", "content": None}, index=1),
        PLAIN.chunk({"role": "assistant", "content": "Hi"}),
        PLAIN.chunk({"role": "assistant", "reasoning_content": "hm"}),
        PLAIN.chunk({"role": "assistant", "foo": 1}),
        PLAIN.chunk({"role": "assistant", "content": None}, finish_reason="stop"),
        PLAIN.chunk({"role": "assistant", "content": None}, more={"prompt_progress": {"total": 9}}),
        PLAIN.chunk({"content": None}),
        b'{"choices":[]}',
    ],
)
def test_a_role_chunk_with_more_than_the_role_is_kept(kept: bytes) -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    stream.out.put(stream.frames.keepalive())
    stream.feed(event(kept))
    assert by_the_general_path(kept) == stream.read()[2:]


def test_the_upstreams_role_chunk_is_kept_if_no_keepalive_was_sent() -> None:
    roles = [PLAIN.chunk({"role": "assistant", "content": None}, index=index) for index in (1, 0)]
    stream = ChatStream()
    stream.feed(*map(event, roles))
    assert by_the_general_path(*roles) == stream.read()


def test_a_chunk_keepalive_carries_the_running_usage() -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk", running_usage=True))
    stream.out.put(stream.frames.keepalive())
    [role, chunk] = stream.chunks()
    assert "usage" not in role
    assert chunk["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert "timings" not in chunk


def test_a_chunk_keepalive_carries_the_timings_of_the_last_upstream_chunk() -> None:
    times = {"prompt_n": 5}
    progress = PLAIN.chunk({"role": "assistant"}, more={"timings": times, "prompt_progress": {"total": 9}})
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    stream.feed(event(progress))
    assert times == orjson.loads(stream.frames.keepalive()[6:])["timings"]

    stripped = ChatStream(FrameOptions(keepalive="chunk", strip_timings=True, running_usage=True))
    stripped.feed(event(progress))
    last = orjson.loads(stripped.frames.keepalive()[6:])
    assert "timings" not in last
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}


def test_scenario_054_with_keepalives_off_comments_are_neither_sent_nor_passed_on() -> None:
    stream = ChatStream(FrameOptions(keepalive="off"))
    stream.feed(T("a"), b":\n\n: ping\n\n")
    assert stream.frames.keepalive() == b""
    assert len(stream.read()) == 1


def test_the_upstreams_comments_are_dropped_if_keepalives_are_chunks() -> None:
    stream = ChatStream(FrameOptions(keepalive="chunk"))
    stream.feed(T("a"), b": ping\n\n")
    assert len(stream.read()) == 1


def test_scenario_053_comments_are_passed_on_and_do_not_commit_the_response() -> None:
    stream = ChatStream(FrameOptions(keepalive="comment"))
    stream.feed(b": x\n\n:\n\ndata:\n\n")
    assert not stream.out.committed
    stream.feed(T("a"), b": x\n", b"\n:\n\n", b"data:\n\n")
    assert [*by_the_general_path(T("a")[6:-2]), b": x\n\n", b":\n\n"] == stream.read()


@pytest.mark.parametrize("form", ["comment", "chunk", "off"])
def test_no_keepalive_is_sent_inside_a_large_event(form: KeepAlive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgate.gateway.http.sse.MAX_EVENT_BYTES", 40)
    big = event(PLAIN.payload("x" * 100))
    stream = ChatStream(FrameOptions(keepalive=form))
    stream.feed(big[:-30])
    assert stream.frames.keepalive() == b""
    stream.feed(big[-30:])
    assert (form == "comment") == bool(stream.frames.keepalive()), "chunks end with the first output"
    stream.feed(DONE)
    [passed] = stream.chunks()
    theirs = orjson.loads(big[6:])
    assert theirs | {"id": OURS.id, "created": OURS.created, "model": OURS.model} == passed
    assert stream.frames.sentinel
    assert stream.token_usage.deltas == 1


OOPS = GatewayError(500, "server_error", "internal_error", "oops")
OOPS_FRAME = b"data: " + OOPS.body() + b"\n\n"


def test_an_error_frame_first_ends_an_incomplete_large_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgate.gateway.http.sse.MAX_EVENT_BYTES", 40)
    stream = ChatStream()
    assert stream.frames.failure(OOPS) == OOPS_FRAME
    stream.feed(event(PLAIN.payload("x" * 100))[:-30])
    stream.frames.finish()
    stream.out.put(stream.frames.failure(OOPS))
    read = b"".join(stream.read())
    assert read.endswith(b"\n\n" + OOPS_FRAME)


# What the gateway asked for and the client did not


def times(predicted: int) -> Json:
    return {"prompt_n": 3, "cache_n": 2, "predicted_n": predicted}


FINISH = PLAIN.chunk({}, finish_reason="stop")
FINISH_WITH_TIMINGS = PLAIN.chunk({}, finish_reason="stop", more={"timings": times(2)})
USAGE = (
    b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7},"timings":%s}'
    % orjson.dumps(times(2))
)


def test_scenario_079_the_usage_chunk_is_withheld_and_its_timings_move_to_the_finish_chunk() -> None:
    stream = ChatStream(FrameOptions(withhold_usage=True))
    stream.feed(T("a"), event(FINISH), event(USAGE), DONE)
    assert by_the_general_path(T("a")[6:-2], FINISH_WITH_TIMINGS) == stream.read()
    stream.token_usage.settle()
    assert (stream.token_usage.prompt_tokens, stream.token_usage.completed, stream.token_usage.exact) == (
        5,
        2,
        True,
    )


def test_scenario_079_the_usage_chunk_is_passed_on_if_the_client_asked_for_it() -> None:
    stream = ChatStream()
    stream.feed(T("a"), event(FINISH), event(USAGE), DONE)
    assert by_the_general_path(T("a")[6:-2], FINISH, USAGE) == stream.read()


def test_the_finish_chunk_is_passed_on_if_no_usage_chunk_comes() -> None:
    stream = ChatStream(FrameOptions(withhold_usage=True))
    stream.feed(T("a"), event(FINISH), DONE)
    assert len(stream.read()) == 1
    stream.frames.finish()
    stream.frames.finish()
    assert by_the_general_path(T("a")[6:-2], FINISH) == stream.read()


def test_timings_in_the_finish_chunk_are_kept() -> None:
    stream = ChatStream(FrameOptions(withhold_usage=True))
    stream.feed(
        event(FINISH_WITH_TIMINGS), event(USAGE.replace(b'"predicted_n":2', b'"predicted_n":9')), DONE
    )
    assert by_the_general_path(FINISH_WITH_TIMINGS) == stream.read()


def test_only_the_usage_chunk_is_withheld() -> None:
    stream = ChatStream(FrameOptions(withhold_usage=True))
    other = b'{"choices":[],"prompt_filter_results":[]}'
    stream.feed(event(USAGE), event(other), event(FINISH), event(other), event(USAGE), DONE)
    assert by_the_general_path(other, other, FINISH_WITH_TIMINGS) == stream.read()


def test_every_choice_keeps_its_finish_chunk() -> None:
    first, second = (PLAIN.chunk({}, finish_reason="stop", index=index) for index in (1, 0))
    stream = ChatStream(FrameOptions(withhold_usage=True))
    stream.feed(event(first), event(second), event(USAGE), DONE)
    stream.frames.finish()
    assert [(c["choices"][0]["index"], "timings" in c) for c in stream.chunks()] == [(1, False), (0, True)]


def test_every_chunk_after_the_role_chunk_has_the_running_usage() -> None:
    stream = ChatStream(FrameOptions(running_usage=True, strip_timings=True))
    deltas = [PLAIN.chunk({"content": "x"}, more={"timings": times(n)}) for n in (1, 2)]
    stream.feed(ROLE, *map(event, deltas), event(FINISH_WITH_TIMINGS), DONE)
    role, first, second, finish = stream.chunks()
    assert "usage" not in role
    assert [tuple(c["usage"].values()) for c in (first, second, finish)] == [(5, 1, 6), (5, 2, 7), (5, 2, 7)]
    assert ["timings" in chunk for chunk in (first, second, finish)] == [False, False, True]


def test_timings_are_kept_if_the_client_asked_for_them() -> None:
    stream = ChatStream(FrameOptions(running_usage=True))
    stream.feed(ROLE, event(PLAIN.chunk({"content": "x"}, more={"timings": times(1)})))
    assert times(1) == stream.chunks()[1]["timings"]


def test_a_requested_usage_chunk_keeps_its_timings() -> None:
    stream = ChatStream(FrameOptions(running_usage=True, strip_timings=True))
    stream.feed(ROLE, event(FINISH), event(USAGE))
    assert times(2) == stream.chunks()[-1]["timings"]


def test_both_parts_of_a_split_chunk_have_the_running_usage() -> None:
    stream = ChatStream(FrameOptions(running_usage=True))
    stream.feed(ROLE, event(PLAIN.chunk({"reasoning": "hm", "content": "x"})))
    assert [chunk.get("usage", {}).get("completion_tokens") for chunk in stream.chunks()] == [None, 1, 1]


# Errors, and what cannot be parsed


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'data: {"error":{"code":500,"message":"m"}}\n\n', {"code": 500, "message": "m"}),
        (b'data: {"error":"boom"}\n\n', {"message": "boom"}),
        (b'error: {"code":400,"message":"m","type":"t"}\n\n', {"code": 400, "message": "m", "type": "t"}),
        (b'error: {"message":"caf\xff"}\n\n', {"message": "caf\ufffd"}),
        (b"error: boom\n\n", {"message": "boom"}),
        (b'event: error\ndata: {"code":400,"message":"m"}\n\n', {"code": 400, "message": "m"}),
        (b'event: error\ndata: {"error":{"message":"m"}}\n\n', {"message": "m"}),
        (b"event: error\ndata: boom\n\n", {"message": "boom"}),
        (b'data: {"error":{"message":"m"}}', {"message": "m"}),
    ],
)
@pytest.mark.parametrize("before", [b"", T("a") + T("b")])
def test_an_error_ends_the_stream(before: bytes, body: bytes, error: Json) -> None:
    stream = ChatStream()
    stream.feed(*(before, body) if before else (body,))
    stream.frames.finish()
    assert error == stream.frames.error
    stream.feed(T("c"), DONE)
    assert ("ab" if before else "") == stream.text()
    assert not stream.frames.sentinel
    assert bool(before) == stream.out.committed, "an error commits nothing"


@pytest.mark.parametrize("nothing", [b"null", b'""', b"{}", b"false"])
def test_an_empty_error_field_is_not_an_error(nothing: bytes) -> None:
    stream = ChatStream()
    stream.feed(b'data: {"error":%s,"choices":[]}\n\n' % nothing)
    assert stream.frames.error is None
    assert len(stream.read()) == 1


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (b"caf\xff", "caf\ufffd"),
        (b"\x82", "\ufffd"),
        (b"\\ud83d", "\ufffd"),
        (b"\\ude00\\ud83d", "\ufffd\ufffd"),
        (b"\\ud83d\\ude00\\ud83d", "😀\ufffd"),
        (b"\\\\ud83d\\ud83d", "\\ud83d\ufffd"),
        (b"tab\there", "tab\there"),
    ],
)
@pytest.mark.parametrize("before", [[], [T("a"), event(PLAIN.payload("b"))]])
def test_scenario_086_broken_text_is_repaired_and_rewritten(
    before: list[bytes], inside: bytes, text: str
) -> None:
    stream = ChatStream()
    stream.feed(*before, event(PLAIN.payload("hello").replace(b"hello", inside)))
    last = stream.chunks()[-1]
    assert text == last["choices"][0]["delta"]["content"]
    assert (OURS.id, OURS.model) == (last["id"], last["model"])


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"NaN", None),
        (b"-Infinity", None),
        (b"1e400", None),
        (b"[NaN,123456789012345678901234567890]", [None, 1.2345678901234568e29]),
    ],
)
def test_numbers_that_json_does_not_have_are_repaired(value: bytes, read: object) -> None:
    stream = ChatStream()
    stream.feed(event(PLAIN.chunk({"content": "x"}, more={"x": "V"}).replace(b'"V"', value)))
    assert [("x", read)] == [(c["choices"][0]["delta"]["content"], c["x"]) for c in stream.chunks()]


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        (b"data: hello\n\n", b"data: hello\n\n"),
        (b"data: [1]\n\n", b"data: [1]\n\n"),
        (b"data: caf\xff\n\n", b"data: caf\xef\xbf\xbd\n\n"),
        (b"data: a\ndata:\ndata: b\n\n", b"data: a\ndata: \ndata: b\n\n"),
        (b"data: " + b"[" * 5000 + b"\n\n", b"data: " + b"[" * 5000 + b"\n\n"),
        (b'data: {"a":' + b"9" * 5000 + b"]\n\n", b'data: {"a":' + b"9" * 5000 + b"]\n\n"),
    ],
)
def test_data_that_is_not_a_json_object_is_passed_on_as_text(body: bytes, passed: bytes) -> None:
    stream = ChatStream()
    stream.feed(body)
    assert [passed] == stream.read()


def test_the_null_before_the_answers_to_an_array_of_prompts_is_dropped() -> None:
    stream = ChatStream()
    stream.feed(b"data: null\n\n", T("a"))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in stream.chunks()] == ["a"]


def test_fields_that_chat_does_not_use_are_dropped() -> None:
    stream = ChatStream()
    stream.feed(b"id: 1\nevent: message\nretry: 5\n" + T("a"))
    assert by_the_general_path(T("a")[6:-2]) == stream.read()


def test_the_repr_of_frames_shows_its_counts() -> None:
    stream = ChatStream()
    stream.feed(T("a"), T("b"))
    assert repr(stream.frames) == "<Frames ChatDialect 1 events parsed, <TokenUsage ~None+2 tokens>>"


# Reasoning

THINK = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"%b"},"finish_reason":null}]}\n\n'
THOUGHT_AND_TEXT = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"a","content":"b"}}]}\n\n'


@pytest.mark.parametrize("together", [False, True], ids=["one event a read", "all events in one read"])
def test_reasoning_deltas_are_counted_apart(together: bool) -> None:
    stream = ChatStream()
    thoughts, words = [THINK % b"a" for _ in range(5)], [T("b") for _ in range(3)]
    events = [ROLE, *thoughts, *words, *thoughts[:2], THOUGHT_AND_TEXT, *thoughts[:1]]
    for reads in [[b"".join(events)]] if together else [events]:
        stream.feed(*reads)
    usage = stream.token_usage
    assert (usage.deltas, usage.reasoning_deltas) == (12, 8)


def test_stream_that_is_cut_off_in_its_reasoning_has_counted_it() -> None:
    stream = ChatStream()
    stream.feed(ROLE, *[THINK % b"a" for _ in range(7)])
    usage = stream.token_usage
    assert (usage.completed, usage.reasoning_tokens) == (7, 7)


def _thinking(kind: str, member: str, text: str) -> bytes:
    delta = {"type": kind, member: text}
    payload = orjson.dumps({"type": "content_block_delta", "index": 0, "delta": delta})
    return b"event: content_block_delta\ndata: " + payload + b"\n\n"


def test_thinking_of_messages_is_reasoning() -> None:
    stream = ChatStream(dialect=MessagesDialect)
    thoughts = [_thinking("thinking_delta", "thinking", "a") for _ in range(4)]
    stream.feed(*thoughts, *[_thinking("text_delta", "text", "b") for _ in range(2)])
    assert (stream.token_usage.deltas, stream.token_usage.reasoning_deltas) == (6, 4)


def test_reasoning_text_of_responses_is_reasoning() -> None:
    stream = ChatStream(dialect=ResponsesDialect)
    kinds = [b"reasoning_text"] * 3 + [b"output_text"] * 2 + [b"reasoning_summary_text"]
    stream.feed(
        *[b'data: {"type":"response.%b.delta","item_id":"i","delta":"a"}\n\n' % kind for kind in kinds]
    )
    assert (stream.token_usage.deltas, stream.token_usage.reasoning_deltas) == (6, 4)


# Events that are too large to hold

READ = 64 * 1024


def reads(body: bytes) -> list[bytes]:
    return [body[start : start + READ] for start in range(0, len(body), READ)]


def test_a_large_event_has_the_gateways_identity_and_is_counted() -> None:
    """Its text, log probabilities and usage pass as they came."""
    theirs = orjson.loads(PLAIN.chunk({"content": "x" * 2 * MAX_EVENT_BYTES}))
    theirs["model"] = "/models/secret.gguf"
    theirs["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}] * 1000}
    theirs["usage"] = {"prompt_tokens": 5, "completion_tokens": 7}
    stream = ChatStream()
    stream.feed(*reads(event(orjson.dumps(theirs))), DONE)
    assert stream.chunks() == [theirs | {"id": OURS.id, "created": OURS.created, "model": OURS.model}]
    assert (stream.token_usage.deltas, stream.token_usage.prompt_tokens, stream.token_usage.completed) == (
        1,
        5,
        7,
    )
    assert stream.frames.first_output_at == stream.now


@pytest.mark.parametrize("dialect", [ResponsesDialect, MessagesDialect, NativeDialect])
def test_a_large_last_event_ends_the_stream_when_its_end_is_sent(dialect: type[Dialect]) -> None:
    text = "x" * 2 * MAX_EVENT_BYTES
    last: dict[type[Dialect], Json] = {
        ResponsesDialect: {"type": "response.completed", "response": {"model": "/m", "output": [text]}},
        MessagesDialect: {"type": "message_stop", "text": text},
        NativeDialect: {"content": text, "model": "/m", "stop": True},
    }
    named = b"event: %b\n" % str(last[dialect]["type"]).encode() if "type" in last[dialect] else b""
    stream = ChatStream(dialect=dialect)
    stream.feed(*reads(named + event(orjson.dumps(last[dialect]))))
    assert (stream.frames.sentinel, stream.frames.error) == (True, None)
    assert not stream.body.endswith(b"\n\n"), "the client reads the event when its slot has been released"
    stream.out.put(stream.frames.terminal)
    [frame] = stream.read()
    assert frame.startswith(named + b"data: {")
    assert b'"/m"' not in frame
    assert text.encode() in frame


@pytest.mark.quiet
def test_an_event_of_3_9_mib_costs_at_most_twice_its_size() -> None:
    size = int(3.9 * 2**20)
    body = reads(event(PLAIN.chunk({"content": "x" * size})))
    stream = ChatStream()
    tracemalloc.start()
    try:
        stream.feed(*body, DONE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * size
