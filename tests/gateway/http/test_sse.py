"""The event parser finds the same events however the bytes are split, and its memory is bounded."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotgate.gateway.http.sse import MAX_EVENT_BYTES, EventParser, SseEvent, SseKind
from tests.support.notation import DONE, STOP, USE, T

STREAM = T("안녕하세요😀é") + b": ping\n\n" + STOP + USE + DONE
EVENTS = [
    SseEvent(T("안녕하세요😀é")[6:-2]),
    SseEvent(b"ping", SseKind.COMMENT),
    SseEvent(STOP[6:-2]),
    SseEvent(USE[6:-2]),
    SseEvent(b"[DONE]"),
]


def parsed(*pieces: bytes) -> list[SseEvent]:
    """Parse a body that arrives in these pieces."""
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


def cut_at(stream: bytes, offsets: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(offset % (len(stream) + 1) for offset in offsets), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(borders)]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[index : index + 1] for index in range(len(stream))]


def by_the_standard(stream: bytes) -> list[SseEvent]:
    """A slow and obvious parser of a whole body, line by line as in the HTML standard."""
    events: list[SseEvent] = []
    data: list[bytes] = []
    name = b""
    for line in [*re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf")), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if b"\n".join(data):
                events.append(SseEvent(b"\n".join(data), SseKind.MESSAGE, name))
            data, name = [], b""
        elif not field:
            events.append(SseEvent(value, SseKind.COMMENT))
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            events.append(SseEvent(value, SseKind.ERROR_FIELD))
    return events


line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])
line_start = st.sampled_from(
    [b"data: ", b"data:", b"data", b": ", b":", b"event: ", b"error: ", b"id: ", b""]
)
value = st.one_of(
    st.sampled_from([b"", b"[DONE]", b" ", b"\xef\xbb\xbf", "a\u2028b\x0b\x85é".encode(), b"\xff"]),
    st.binary(max_size=4).map(lambda raw: raw.translate(None, b"\r\n")),
)
line = st.tuples(line_start, value, line_end).map(b"".join)
streams = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]), st.lists(st.one_of(line, line_end), max_size=12).map(b"".join)
).map(b"".join)


@pytest.mark.slow
@given(streams, st.lists(st.integers(0, 200), max_size=6))
@example(b"data: a\r\rdata: b\r\r", [8])
@example(b"data: a\r\n\r\ndata: b", [8, 9, 10])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
@example(b"data: a\n: in between\ndata: b\n\n", [8, 12])
def test_any_split_of_any_stream_gives_the_events_of_the_standard(stream: bytes, offsets: list[int]) -> None:
    expected = by_the_standard(stream)
    assert expected == parsed(stream)
    assert expected == parsed(*cut_at(stream, offsets))
    assert expected == parsed(*bytewise(stream))


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_scenario_046_a_split_at_any_offset_changes_nothing(line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    assert parsed(stream) == EVENTS
    assert parsed(*bytewise(stream)) == EVENTS
    for offset in range(len(stream)):
        assert parsed(stream[:offset], stream[offset:]) == EVENTS


def test_events_after_done_in_the_same_read_are_parsed_too() -> None:
    assert [*EVENTS, *EVENTS, SseEvent(b"tail")] == parsed(STREAM + STREAM + b"data: tail")


def test_scenario_048_a_crlf_event_is_complete_at_its_second_cr() -> None:
    parser = EventParser()
    assert parser.feed(b"data: {}\r") == []
    assert [SseEvent(b"{}")] == parser.feed(b"\n\r")
    assert parser.feed(b"\n") == []
    assert [SseEvent(b"[DONE]")] == parser.feed(b"data:[DONE]\r\n\r\n")


def test_scenario_049_bare_cr_ends_lines() -> None:
    parser = EventParser()
    assert [SseEvent(b"{}"), SseEvent(b"[DONE]")] == parser.feed(b"data: {}\r\rdata: [DONE]\r\r")


def test_an_event_does_not_wait_for_an_lf_after_its_cr() -> None:
    parser = EventParser()
    assert [SseEvent(b"{}")] == parser.feed(b"data: {}\r\n\r")
    assert parser.pending
    assert [SseEvent(b"1")] == parser.feed(b"\ndata: 1\n\n")
    assert not parser.pending


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\u0085d\x0be", "\x1c\x1d\x1e\x0c"])
def test_scenario_051_only_cr_and_lf_end_a_line(text: str) -> None:
    data = f'{{"content":"{text}"}}'.encode()
    assert [SseEvent(data)] == parsed(b"data: " + data + b"\n\n")


def test_scenario_053_an_event_without_data_is_ignored() -> None:
    assert [SseEvent(b"x", SseKind.COMMENT), SseEvent(b"", SseKind.COMMENT)] == parsed(
        b": x\n\n:\n\ndata:\n\ndata: \n\nid: 1\n\nevent: e\n\nretry: 5\n\n\n\n"
    )


def test_data_lines_are_joined_and_names_are_kept() -> None:
    assert [SseEvent(b'{"a":\n1}', SseKind.MESSAGE, b"e"), SseEvent(b"\n", SseKind.MESSAGE)] == parsed(
        b'event: e\nid: 7\ndata: {"a":\ndata:1}\n\ndata\ndata:\n\n'
    )


def test_a_single_space_after_the_colon_is_dropped() -> None:
    assert [SseEvent(b"a"), SseEvent(b" a"), SseEvent(b"a:b")] == parsed(
        b"data:a\n\ndata:  a\n\ndata: a:b\n\n"
    )


def test_a_comment_is_reported_as_soon_as_its_line_is_complete() -> None:
    parser = EventParser()
    assert parser.feed(b": pi") == []
    assert [SseEvent(b"ping", SseKind.COMMENT)] == parser.feed(b"ng\n")
    assert not parser.pending
    assert [SseEvent(b"a"), SseEvent(b"b", SseKind.COMMENT)] == parser.feed(b"\ndata: a\n\n: b\n")


def test_a_comment_inside_an_event_comes_before_it() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n: in between\n") == []
    assert [SseEvent(b"in between", SseKind.COMMENT), SseEvent(b"a\nb")] == parser.feed(b"data: b\n\n")


def test_scenario_067_the_error_field_of_old_builds_is_recognised() -> None:
    assert [SseEvent(b'{"code":400}', SseKind.ERROR_FIELD), SseEvent(b"[DONE]")] == parsed(
        b'error: {"code":400}\n\ndata: [DONE]\n\n'
    )


def test_scenario_055_the_last_event_may_lack_its_blank_line() -> None:
    assert [SseEvent(b"[DONE]")] == parsed(b"data: [DONE]")
    assert [SseEvent(b"[DONE]")] == parsed(b"data: [DONE]\n")


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    bom = b"\xef\xbb\xbf"
    assert [SseEvent(b"a"), SseEvent(bom + b"b")] == parsed(bom + b"data: a\n\n", b"data: " + bom + b"b\n\n")
    assert parsed(b"\xef\xbb") == []


@pytest.mark.parametrize(
    ("stream", "pending"),
    [
        (b"", True),  # a byte order mark may come
        (b"data: a\n\n", False),
        (b"data: a\n\nd", True),
        (b"data: a\n\n: c\n", False),
        (b"data: a\r\r", True),  # the LF of the last CR may come
    ],
)
def test_a_parser_knows_whether_the_next_bytes_begin_an_event(stream: bytes, pending: bool) -> None:
    parser = EventParser()
    parser.feed(stream)
    assert pending == parser.pending


def test_repr_shows_the_pending_bytes() -> None:
    parser = EventParser()
    parser.feed(b"data: a\n\nda")
    assert repr(parser) == "<EventParser 2 bytes pending>"


# Events too big to be read


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("slotgate.gateway.http.sse.MAX_EVENT_BYTES", 40)
    return 40


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_large_event_is_reported_in_pieces_and_the_stream_goes_on(limit: int, line_end: bytes) -> None:
    """However it is cut: its data lines joined, its comments apart, its name with every piece."""
    lines = [
        b"event: big",
        b"data: " + b"x" * limit,
        b": c1",
        b"id: 7",
        b"data:" + b"y" * limit,
        b"data",
        b"",
        b"",
    ]
    after = b"data: 1\ndata: 2\n\n: c2\ndata: [DONE]\n\n"
    stream = (b"data: 0\n\n" + b"\n".join(lines) + after).replace(b"\n", line_end)
    for size in range(1, limit):
        first, *middle = parsed(*(stream[start : start + size] for start in range(0, len(stream), size)))
        assert SseEvent(b"0") == first
        pieces = [event for event in middle if event.kind is SseKind.PIECE]
        assert b"x" * limit + b"\n" + b"y" * limit == b"".join(event.data for event in pieces)
        assert {event.name for event in pieces} == {b"big"}
        others = [event for event in middle if event.kind is not SseKind.PIECE]
        assert [
            SseEvent(b"c1", SseKind.COMMENT),
            SseEvent(b"", SseKind.LAST, b"big"),
            SseEvent(b"1\n2"),
            SseEvent(b"c2", SseKind.COMMENT),
            SseEvent(b"[DONE]"),
        ] == others


def test_a_large_event_ends_with_its_blank_line(limit: int) -> None:
    parser = EventParser()
    assert [SseEvent(b"x" * limit, SseKind.PIECE)] == parser.feed(b"data: " + b"x" * limit + b"\n")
    assert parser.pending
    assert [SseEvent(b"", SseKind.LAST)] == parser.feed(b"\n")
    assert not parser.pending


def test_a_large_event_that_is_cut_off_has_no_end(limit: int) -> None:
    events = parsed(*bytewise(b"data: " + b"x" * limit + b"\n"))
    assert {event.kind for event in events} == {SseKind.PIECE}
    assert b"x" * limit == b"".join(event.data for event in events)


def test_the_memory_of_a_large_event_without_data_is_bounded() -> None:
    for start in (b"event: ", b": ", b"", b"id: "):
        parser = EventParser()
        parser.feed(start)
        for _ in range(100):
            assert parser.feed(b"x" * 65536) == []
        assert int(repr(parser).split()[1]) <= MAX_EVENT_BYTES
