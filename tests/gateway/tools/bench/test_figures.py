"""The figures of benchmark requests."""

from __future__ import annotations

import pytest

from slotgate.gateway.tools.bench import BenchFigures, BenchRequest
from slotgate.gateway.tools.bench.figures import Percentiles
from slotgate.gateway.upstream import End
from tests.support.notation import DONE, STOP, T


def request(*frames: bytes, status: int = 200, end: End = End.COMPLETE) -> BenchRequest:
    """Return a request that received these bytes."""
    seen = BenchRequest()
    seen.head(status, [(b"server-timing", b"queue;dur=12.5, upstream;dur=3")])
    for frame in frames:
        seen.body(frame)
    seen.ended(end)
    return seen


def test_a_complete_stream_is_a_success_with_times_and_counts() -> None:
    seen = request(T("a"), T("b"), STOP, DONE)
    assert (seen.ok, seen.failure, seen.queue_ms, len(seen.gaps)) == (True, "", 12.5, 1)
    assert seen.first_text_s is not None
    assert 0 <= seen.first_text_s <= seen.total_s
    assert seen.tokens >= 2


@pytest.mark.parametrize(
    ("seen", "failure"),
    [
        (request(T("a")), "stream complete"),
        (request(T("a"), end=End.CUT_SHORT), "stream cut short"),
        (request(b'data: {"error":{"message":"x","type":"t","code":"idle_timeout"}}\n\n'), "idle_timeout"),
        (request(b'{"error":{"code":"queue_full"}}', status=429), "queue_full"),
        (request(b"<html>", status=502), "status 502"),
    ],
)
def test_a_failed_request_has_its_reason(seen: BenchRequest, failure: str) -> None:
    assert (seen.ok, seen.failure) == (False, failure)


def test_percentiles_are_measured_values() -> None:
    assert Percentiles.of(range(1, 101)) == Percentiles(50, 95, 99, 100)
    assert Percentiles.of([7.0]) == Percentiles(7.0, 7.0, 7.0, 7.0)
    assert Percentiles.of([]) is None


def test_figures_count_successes_and_failures_by_their_code() -> None:
    requests = [request(T("a"), STOP, DONE)] * 3 + [request(b'{"error":{"code":"queue_full"}}', status=429)]
    figures = BenchFigures.of(requests, 2.0)
    assert (figures.requests, figures.ok, figures.failures) == (4, 3, {"queue_full": 1})
    assert figures.queue == Percentiles(12.5, 12.5, 12.5, 12.5)
    assert figures.tokens_per_s == figures.tokens / 2
    text = figures.as_text()
    assert text.startswith("3 of 4 answers in 2.0 s")
    assert "failed: 1 × queue_full" in text


def test_without_an_answer_there_is_no_table() -> None:
    text = BenchFigures.of([], 0.0).as_text()
    assert text == "0 of 0 answers in 0.0 s, 0 tokens: 0 tokens/s in all\n"
    assert BenchFigures.of([], 0.0).as_json()["queue_ms"] is None
