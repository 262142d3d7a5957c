"""The text of a recording: round trips, readable lines, and refused documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.testing.cassette.document import read_exchange, written
from slotgate.gateway.testing.cassette.exchange import (
    Ending,
    RecordedExchange,
    RecordedRead,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.request import RecordedRequest

ASKED = RecordedRequest("POST", "/v1/chat/completions", (), {"json": {"stream": True, "model": "é"}})


def exchange(*reads: RecordedRead, **changes: object) -> RecordedExchange:
    facts: dict[str, object] = {
        "status": 200,
        "head_ms": 1.5,
        "headers": (("content-type", "text/event-stream"),),
        "reads": reads,
        "ending": Ending.COMPLETE,
        "end_ms": 9.0,
        "closes": True,
    }
    return RecordedExchange(ASKED, RecordedResponse(**{**facts, **changes}))  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.floats(0, 1e7).map(lambda ms: round(ms, 1)), st.binary() | st.text().map(str.encode))
    )
)
def test_every_byte_and_every_read_survives_a_round_trip(reads: list[tuple[float, bytes]]) -> None:
    kept = exchange(*(RecordedRead(ms, data) for ms, data in reads))
    assert read_exchange(written(kept)) == kept


def test_a_read_is_a_line_with_its_time_and_its_text() -> None:
    text = written(
        exchange(
            RecordedRead(1.5, b'data: {"a":"\xe2\x80\xa8\xf0\x9f\x98\x80"}\n\n'), RecordedRead(2.0, b"\xff")
        )
    ).decode()
    assert '\n      [1.5, "data: {\\"a\\":\\"\u2028😀\\"}\\n\\n"],\n      [2.0, {"base64": "/w=="}]\n' in text
    assert json.loads(text)["response"]["ending"] == "complete"


def test_a_missing_head_and_repeated_headers_survive_a_round_trip() -> None:
    for kept in (
        exchange(status=None, headers=(), ending=Ending.CUT_SHORT),
        exchange(headers=(("a", "1"), ("a", "2"))),
    ):
        assert read_exchange(written(kept)) == kept


def test_half_a_surrogate_pair_survives_a_round_trip() -> None:
    asked = RecordedRequest("POST", "/x", (), {"json": {"a": "\ud800"}})
    kept = RecordedExchange(asked, exchange().response)
    assert read_exchange(written(kept)) == kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "Expecting"),
        (b"[]", "not a recording of this format"),
        (b'{"cassette": 2}', "not a recording of this format"),
        (b'{"cassette": 1, "request": {"method": "GET", "target": "/"}}', "'response' is missing"),
        (written(exchange()).replace(b'"reads": []', b'"reads": 7'), "wrong type"),
        (written(exchange()).replace(b'"complete"', b'"done"'), "done"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"cassette": 1, "request": %b' % (b'{"a":' * 100_000), "nested too deep"),
        (written(exchange(status=99_999)), "status is null or a number"),
        (written(exchange(status="200")), "status is null or a number"),
        (written(exchange(head_ms="1")), "head_ms: a time is a number"),
        (written(exchange(end_ms=-1)), "end_ms: a time is a number"),
        (written(exchange(RecordedRead(float("inf"), b""))), "reads: a time is a number"),
        (written(exchange(headers=(("x", 1),))), "not a header"),
        (written(exchange(headers=(("x", "a\r\ny: b"),))), "not a header"),
        (written(exchange(headers=(("x", "\u2603"),))), "not a header"),
        (written(exchange(headers=(("a b", ""),))), "not a header"),
        (written(exchange(headers=(("content-length", "-5"),))), "not a content-length"),
    ],
)
def test_an_invalid_recording_is_refused_with_the_reason(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_exchange(text)
