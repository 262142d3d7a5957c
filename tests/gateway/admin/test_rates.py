"""Tokens a second and time to the first of them, in spans of ten minutes. Time is an argument."""

from slotgate.gateway.admin.rates import SPAN_S, SPANS, Rates
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.errors import GatewayError


class Answer:
    """One under way."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first_output_at: float | None = None

    def progress(self) -> Progress:
        return Progress(None, self.tokens, self.first_output_at)

    def cancel(self, error: GatewayError) -> None:
        """Nobody does."""


def test_tokens_count_in_the_span_in_which_they_were_made_and_once() -> None:
    rates, answer = Rates(1000.0), Answer()
    answer.tokens = 10
    rates.look([(answer, 1000.0)], 1004.9)
    answer.tokens = 40
    rates.look([(answer, 1000.0)], 1006.0)
    rates.look([(answer, 1000.0)], 1007.0)
    answer.tokens = 45
    rates.ended(answer, 1000.0, 1009.0)
    assert [point["tokens_per_s"] for point in rates.since(0, 1012.0)] == [2.0, 7.0, 0.0]
    assert repr(rates).endswith("0 answers>"), "what is over is forgotten"


def test_the_time_to_the_first_token_counts_once_and_from_the_request_on() -> None:
    rates = Rates(1000.0)
    for seconds in (0.2, 0.4, 3.0):
        answer = Answer()
        answer.first_output_at = 1000.0 + seconds
        rates.look([(answer, 1000.0)], 1003.0)
        rates.ended(answer, 1000.0, 1004.0)
    [point] = rates.since(0, 1004.0)
    assert (point["ttft_ms"], point["ttft_max_ms"]) == (400.0, 3000.0)


def test_a_span_without_requests_has_no_time_to_first_token() -> None:
    rates = Rates(1000.0)
    assert [point["ttft_ms"] for point in rates.since(0, 1011.0)] == [None, None, None]


def test_ten_minutes_are_kept_however_long_it_runs_and_whatever_was_missed() -> None:
    rates = Rates(1000.0)
    for _ in range(2):
        points = rates.since(0, 1_000_000.0)
        assert len(points) == SPANS
        assert points[-1]["n"] == 1_000_000 // SPAN_S


def test_only_what_is_new_is_told_to_who_knows_the_rest() -> None:
    rates = Rates(1000.0)
    rates.look([], 1021.0)
    assert [point["n"] for point in rates.since(203, 1021.0)] == [203, 204]


def test_the_rate_now_covers_the_span_before_as_far_as_it_is_not_over() -> None:
    rates, answer = Rates(1000.0), Answer()
    answer.tokens = 50
    rates.look([(answer, 1000.0)], 1004.0)
    assert rates.tokens_per_s(1005.0) == 10.0
    assert rates.tokens_per_s(1007.5) == 5.0
    assert rates.tokens_per_s(1010.0) == 0.0


def test_the_next_look_is_just_before_the_end_of_a_span() -> None:
    rates = Rates(1000.0)
    assert 4.9 < rates.next_look_in_s(1000.0) < 5.0
    assert 4.9 < rates.next_look_in_s(1004.97) < 5.03
