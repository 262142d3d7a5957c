"""The table of the books: every endpoint, every ending, and the figures in all books afterwards.

A stream says its first token after one second and its second one after two. An answer that is no stream comes
after two seconds. `tests/support/booked_request.py` explains the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest

from tests.support.booked_request import (
    ESTIMATED,
    GONE,
    LOADING,
    MORTAL,
    TAKEN,
    Ending,
    Row,
    cancel,
    die,
    drain,
    leave,
    supersede,
)
from tests.support.books import rows_of
from tests.support.endpoints import WAYS, WORDS, Way
from tests.support.notation import END, H, answer, chunked, error_body
from tests.support.script import Fin, Script, Sleep, Stall, Write
from tests.support.virtual_time import run_virtual

STATED_EARLY = {"messages": (31, 30), "native": (31, 0), "infill": (31, 0)}
"""Endpoint -> the prompt and cached tokens that its stream states before its end. Others state nothing."""

FIRST_PATHS = [way for way in WAYS if way.path == way.endpoint.paths[0]]
SLOT_FREE = [way for way in FIRST_PATHS if not way.endpoint.takes_slot]
WHOLE = [way for way in FIRST_PATHS if way.endpoint.takes_slot]
STREAMS = [way for way in WHOLE if way.sample.events]
ARRAYS = [way for way in WHOLE if way.endpoint.name in ("completions", "native", "embeddings", "rerank")]


# -- what the backend says


def spoken(way: Way, *then: Script, words: int = 2, reason: str = "stop") -> Script:
    """Return a stream of one word or two, one second apart, and what follows."""
    events = _events(way, reason)
    first, second = (_until(way, word) for word in WORDS)
    script: list[Write | Sleep] = [Write(H), Sleep(1), Write(chunked(*events[:first]))]
    if words == 2:
        script += [Sleep(1), Write(chunked(*events[first:second]))]
    return [*script, *(step for steps in then for step in steps)]


def second_word(way: Way) -> Script:
    return [Write(chunked(way.sample.events[_until(way, WORDS[1]) - 1]))]


def closing(way: Way, reason: str = "stop") -> Script:
    """Return the end of a stream behind its last word."""
    return [Write(chunked(*_events(way, reason)[_until(way, WORDS[1]) :]) + END), Fin()]


def failing(way: Way) -> Script:
    return [Write(chunked(way.error_event(500, "boom", "server_error")) + END), Fin()]


def stalled(way: Way) -> Script:
    return spoken(way, [Stall()], words=1)


def refused(status: int) -> Script:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return [Sleep(1), Write(answer(status, error_body(status, "no", kind), b"Connection: close")), Fin()]


def whole(way: Way, reason: str = "stop") -> Script:
    said = orjson.dumps(way.sample.whole)
    return [Sleep(2), Write(answer(200, orjson.loads(_cut_by_limit(said) if reason == "length" else said)))]


def half(way: Way, *then: Script) -> Script:
    """Return the first half of an answer that is no stream, and what follows."""
    said = answer(200, way.sample.whole)
    return [
        Sleep(2),
        Write(said[: -len(orjson.dumps(way.sample.whole)) // 2]),
        *(s for steps in then for s in steps),
    ]


def _until(way: Way, word: str) -> int:
    """Return the number of events up to the first that has this word, inclusive."""
    return next(number for number, event in enumerate(way.sample.events, 1) if word.encode() in event)


def _events(way: Way, reason: str) -> Sequence[bytes]:
    return list(map(_cut_by_limit, way.sample.events)) if reason == "length" else way.sample.events


def _cut_by_limit(said: bytes) -> bytes:
    """Return what a backend says if the limit of tokens is the reason for the end of the answer."""
    for stopped, cut in (
        (b'"finish_reason":"stop"', b'"finish_reason":"length"'),
        (b'"stop_type":"eos"', b'"stop_type":"limit"'),
        (b'"stop_reason":"end_turn"', b'"stop_reason":"max_tokens"'),
    ):
        said = said.replace(stopped, cut)
    return said


# -- the tables

#          status, prompt, cached, completion
FULL = Row(200, 31, 30, 2, partial=False, records=1, requests=1, seconds=2, live=(0, 1))
CUT = Row(200, ESTIMATED, 0, 1, partial=True, records=1, requests=1, seconds=1.5, live=(0, 1))
UNSEEN = Row(499, ESTIMATED, 0, 0, partial=True, records=1, requests=1, seconds=0.5, live=(0, 0))
QUEUED = Row(499, 0, 0, 0, partial=False, records=0, requests=0, seconds=0, live=(0, 0))
FAILED = Row(502, 0, 0, 0, partial=False, records=1, requests=0, seconds=1, live=(0, 0))
UNREACHED = replace(FAILED, seconds=0)

OF_A_STREAM: dict[str, Ending] = {
    "unreachable": Ending(lambda _: [], UNREACHED, at=0.5, model=GONE),
    "stop": Ending(lambda way: spoken(way, closing(way)), FULL),
    "length": Ending(lambda way: spoken(way, closing(way, "length"), reason="length"), FULL),
    "left in the queue": Ending(lambda _: [], QUEUED, leave, 0.5, TAKEN),
    "left in prefill": Ending(lambda _: [Write(H), Stall()], UNSEEN, leave, 0.5),
    "left in decode": Ending(stalled, replace(CUT, status=499), leave),
    "left after the last token": Ending(
        lambda way: spoken(way, [Sleep(1)], closing(way)),
        replace(CUT, status=499, completion=2, seconds=2.5, live=(0, 2)),
        *(leave, 2.5),
    ),
    "left after the end": Ending(
        lambda way: spoken(way, closing(way)), replace(FULL, live=(31, 2)), leave, 2.5
    ),
    "truncated": Ending(lambda way: spoken(way, [Sleep(1), Fin()], words=1), replace(CUT, seconds=2)),
    "truncated before a token": Ending(
        lambda way: [Write(H), Sleep(1), Write(way.silent_head()), Fin()], FAILED, at=0.5
    ),
    "error in the stream": Ending(
        lambda way: spoken(way, [Sleep(1)], failing(way), words=1), replace(CUT, seconds=2)
    ),
    "error before a token": Ending(
        lambda way: [Write(H), Sleep(1), *failing(way)], replace(FAILED, status=500), at=0.5
    ),
    "refused by the backend": Ending(lambda _: refused(400), replace(FAILED, status=400, requests=1), at=0.5),
    "failed by the backend": Ending(lambda _: refused(500), replace(FAILED, status=500), at=0.5),
    "no first event": Ending(lambda _: [Write(H), Stall()], replace(FAILED, status=504, seconds=3)),
    "idle": Ending(stalled, replace(CUT, seconds=4)),
    "total": Ending(
        lambda way: spoken(way, [Sleep(2.5)], second_word(way), [Stall()], words=1),
        replace(CUT, completion=2, seconds=5),
    ),
    "cancelled in the queue": Ending(lambda _: [], replace(QUEUED, status=409), cancel, 0.5, TAKEN),
    "cancelled": Ending(stalled, CUT, cancel),
    "superseded": Ending(stalled, CUT, supersede),
    "backend dies before a token": Ending(
        lambda _: [Write(H), Stall()], replace(FAILED, seconds=0), die, 0.5, MORTAL
    ),
    "backend dies in decode": Ending(stalled, CUT, die, model=MORTAL),
    "retried": Ending(lambda way: spoken(way, closing(way)), FULL, model=LOADING),
    "drained": Ending(stalled, CUT, drain),
}

ANSWERED = replace(FULL, live=(0, 0))
UNANSWERED = replace(UNSEEN, seconds=1.5)
OF_A_WHOLE_ANSWER: dict[str, Ending] = {
    "unreachable": Ending(lambda _: [], UNREACHED, at=0.5, model=GONE),
    "stop": Ending(whole, ANSWERED),
    "length": Ending(lambda way: whole(way, "length"), ANSWERED),
    "left in the queue": Ending(lambda _: [], QUEUED, leave, 0.5, TAKEN),
    "left before the answer": Ending(whole, UNANSWERED, leave),
    "left inside the answer": Ending(
        lambda way: half(way, [Stall()]), replace(UNANSWERED, seconds=2.5), leave, 2.5
    ),
    "left after the end": Ending(whole, replace(ANSWERED, live=(31, 2)), leave, 2.5),
    "truncated": Ending(lambda way: half(way, [Fin()]), replace(FAILED, seconds=2)),
    "refused by the backend": Ending(lambda _: refused(400), replace(FAILED, status=400, requests=1), at=0.5),
    "failed by the backend": Ending(lambda _: refused(500), replace(FAILED, status=500), at=0.5),
    "no first byte": Ending(lambda _: [Stall()], replace(FAILED, status=504, seconds=3)),
    "idle": Ending(lambda way: half(way, [Stall()]), replace(FAILED, status=504, seconds=5)),
    "total": Ending(
        lambda way: [Sleep(0.5), *half(way, [Stall()])], replace(UNANSWERED, status=504, seconds=5)
    ),
    "cancelled in the queue": Ending(lambda _: [], replace(QUEUED, status=409), cancel, 0.5, TAKEN),
    "cancelled": Ending(whole, replace(UNANSWERED, status=409), cancel),
    "superseded": Ending(whole, replace(UNANSWERED, status=409), supersede),
    "backend dies": Ending(whole, replace(FAILED, seconds=0), die, model=MORTAL),
    "retried": Ending(whole, ANSWERED, model=LOADING),
    "drained": Ending(whole, replace(UNANSWERED, status=503), drain),
}

# To see that two or three slots are idle takes half a slot-second.
#            status, prompt, cached, completion: of three answers, of the first one, and of none
THREE = Row(200, 93, 90, 6, partial=False, records=1, requests=1, seconds=6, live=(0, 0))
ONE = Row(499, ESTIMATED, 30, 2, partial=True, records=1, requests=1, seconds=7, live=(31, 2))
NONE = Row(499, ESTIMATED, 0, 0, partial=True, records=1, requests=1, seconds=5, live=(0, 0))
OF_AN_ARRAY: dict[str, Ending] = {
    "stop": Ending(whole, THREE),
    "left in the queue": Ending(lambda _: [], QUEUED, leave, 0.5, TAKEN),
    "left before an answer": Ending(whole, NONE, leave),
    "left behind the first answer": Ending(
        whole, replace(ONE, seconds=7.5), leave, 2.5, others=lambda _: [Stall()]
    ),
    "second one refused by the backend": Ending(
        whole, replace(ONE, status=400, prompt=31), at=2.25, others=lambda _: [Sleep(1.5), *refused(400)]
    ),
    "second one failed by the backend": Ending(
        whole, replace(ONE, status=500, prompt=31), at=2.25, others=lambda _: [Sleep(1.5), *refused(500)]
    ),
    "all refused by the backend": Ending(
        lambda _: refused(400), replace(FAILED, status=400, requests=1, seconds=3.5), at=0.5
    ),
    "all failed by the backend": Ending(
        lambda _: refused(500), replace(FAILED, status=500, seconds=3.5), at=0.5
    ),
    "no first byte": Ending(lambda _: [Stall()], replace(FAILED, status=504, seconds=9.5)),
    "cancelled": Ending(whole, replace(NONE, status=409), cancel),
    "superseded": Ending(whole, replace(NONE, status=409), supersede),
    "retried": Ending(whole, THREE, model=LOADING),
    "drained": Ending(whole, replace(NONE, status=503), drain),
}

SLOTLESS = Row(200, 0, 0, 0, partial=False, records=0, requests=1, seconds=0, live=None)
WITHOUT_A_SLOT: dict[str, Ending] = {
    "answered": Ending(whole, SLOTLESS),
    "left before the answer": Ending(whole, replace(SLOTLESS, status=499), leave),
    "truncated": Ending(lambda way: half(way, [Fin()]), replace(SLOTLESS, status=502, requests=0)),
    "refused by the backend": Ending(lambda _: refused(400), replace(SLOTLESS, status=400), at=0.5),
    "failed by the backend": Ending(
        lambda _: refused(500), replace(SLOTLESS, status=500, requests=0), at=0.5
    ),
    "no first byte": Ending(lambda _: [Stall()], replace(SLOTLESS, status=504, requests=0)),
    "idle": Ending(lambda way: half(way, [Stall()]), replace(SLOTLESS, status=504, requests=0)),
}


def of_endpoint(way: Way, name: str, row: Row) -> Row:
    """Return the row as this endpoint has it: with the tokens that its answers state, and when they do."""
    prompt, cached, completion = way.sample.counts
    if row.prompt == 31:  # the answer is complete
        row = replace(row, prompt=prompt or ESTIMATED, cached=cached, completion=completion)
        if row.live == (31, 2):
            row = replace(row, live=(row.prompt, completion))
    early = STATED_EARLY.get(way.endpoint.name)
    if early and row.live and row.live[1]:  # a token has passed
        row = replace(row, live=(early[0], row.live[1]))
        if row.partial:
            row = replace(row, prompt=early[0], cached=early[1])
    if name == "truncated before a token" and way.silent_head():
        row = replace(row, status=200)  # an event without text has begun the stream
    if row.status == 503 and way.endpoint.name == "messages":
        row = replace(row, status=529)
    return row


def of_array(way: Way, row: Row) -> Row:
    """Return the row as this endpoint has it, which may generate nothing."""
    _, cached, completion = way.sample.counts
    row = replace(row, cached=row.cached * cached // 30, completion=row.completion * completion // 2)
    return replace(row, live=(row.live[0], row.live[1] * completion // 2)) if row.live else row


def check(way: Way, endings: dict[str, Ending], *, stream: bool) -> None:
    rows = run_virtual(rows_of(way, endings, stream=stream))
    due = {name: of_endpoint(way, name, ending.row) for name, ending in endings.items()}
    assert due == rows, "\n".join(f"{n}: {rows[n]!r}\n{due[n]!r}" for n in due if due[n] != rows[n])


@pytest.mark.slow
@pytest.mark.parametrize("way", STREAMS, ids=repr)
def test_stream(way: Way) -> None:
    check(way, OF_A_STREAM, stream=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", WHOLE, ids=repr)
def test_answer_that_is_no_stream(way: Way) -> None:
    check(way, OF_A_WHOLE_ANSWER, stream=False)


@pytest.mark.slow
@pytest.mark.parametrize("way", ARRAYS, ids=repr)
def test_array_that_is_asked_element_by_element(way: Way) -> None:
    rows = run_virtual(rows_of(way, OF_AN_ARRAY, stream=False, wide=True))
    assert rows == {name: of_array(way, ending.row) for name, ending in OF_AN_ARRAY.items()}


@pytest.mark.parametrize("way", SLOT_FREE, ids=repr)
def test_request_without_a_slot(way: Way) -> None:
    check(way, WITHOUT_A_SLOT, stream=False)
