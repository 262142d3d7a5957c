"""Tokens per second and time to first token, in intervals over ten minutes. Time is an argument."""

from __future__ import annotations

from slotgate.gateway.admin.rates import INTERVAL_S, INTERVALS, Rates
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.errors import GatewayError


class GrowingAnswer:
    """A live answer. The test sets its progress."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first_output_at: float | None = None

    def progress(self) -> Progress:
        return Progress((), 0, 0, self.tokens, self.first_output_at)

    @property
    def waits(self) -> bool:
        return False

    def runs_on(self, backend: str) -> bool:
        raise NotImplementedError

    def cancel(self, error: GatewayError) -> None:
        raise NotImplementedError


def test_tokens_are_counted_once_and_in_their_interval() -> None:
    rates, answer = Rates(1000.0), GrowingAnswer()
    answer.tokens = 10
    rates.sample([(answer, 1000.0)], 1004.9)
    answer.tokens = 40
    rates.sample([(answer, 1000.0)], 1006.0)
    rates.sample([(answer, 1000.0)], 1007.0)
    answer.tokens = 45
    rates.ended(answer, 1000.0, 1009.0)
    assert [point["tokens_per_s"] for point in rates.since(0, 1012.0)] == [2.0, 7.0, 0.0]
    assert repr(rates).endswith("0 answers>"), "an answer that is over must be forgotten"


def test_time_to_first_token_is_measured_from_the_request_and_counted_once() -> None:
    rates = Rates(1000.0)
    for seconds in (0.2, 0.4, 3.0):
        answer = GrowingAnswer()
        answer.first_output_at = 1000.0 + seconds
        rates.sample([(answer, 1000.0)], 1003.0)
        rates.ended(answer, 1000.0, 1004.0)
    [point] = rates.since(0, 1004.0)
    assert (point["ttft_ms"], point["ttft_max_ms"]) == (400.0, 3000.0)


def test_an_interval_without_requests_has_no_time_to_first_token() -> None:
    rates = Rates(1000.0)
    assert [point["ttft_ms"] for point in rates.since(0, 1011.0)] == [None, None, None]


def test_ten_minutes_are_kept_after_a_long_time_without_samples() -> None:
    rates = Rates(1000.0)
    for _ in range(2):
        points = rates.since(0, 1_000_000.0)
        assert len(points) == INTERVALS
        assert points[-1]["n"] == 1_000_000 // INTERVAL_S


def test_since_returns_only_the_intervals_from_a_number_on() -> None:
    rates = Rates(1000.0)
    rates.sample([], 1021.0)
    assert [point["n"] for point in rates.since(203, 1021.0)] == [203, 204]


def test_the_current_rate_includes_a_part_of_the_previous_interval() -> None:
    rates, answer = Rates(1000.0), GrowingAnswer()
    answer.tokens = 50
    rates.sample([(answer, 1000.0)], 1004.0)
    assert rates.tokens_per_s(1005.0) == 10.0
    assert rates.tokens_per_s(1007.5) == 5.0
    assert rates.tokens_per_s(1010.0) == 0.0


def test_the_next_sample_is_just_before_the_end_of_an_interval() -> None:
    rates = Rates(1000.0)
    assert 4.9 < rates.next_sample_in_s(1000.0) < 5.0
    assert 4.9 < rates.next_sample_in_s(1004.97) < 5.03
