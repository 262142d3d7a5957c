"""Counts are what the backend states, else what passed; and it is known which."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.api.token_usage import TokenUsage
from tests.support.llama_frames import chat_body, timings, usage

Json = dict[str, Any]


def meter_of(*answers: Json, deltas: int = 0) -> TokenUsage:
    token_usage = TokenUsage()
    for answer in answers:
        token_usage.read(answer)
    token_usage.deltas = deltas
    return token_usage


def counts(token_usage: TokenUsage) -> tuple[int, int, int, bool]:
    return token_usage.prompt_tokens, token_usage.cached_tokens, token_usage.completed, token_usage.exact


def test_usage_wins_over_timings() -> None:
    assert counts(meter_of({"usage": usage(7)}, deltas=9)) == (31, 30, 7, True)
    assert counts(meter_of(chat_body(["a", "b"], "m", "stop"))) == (31, 30, 2, True)


def test_timings_count_without_usage() -> None:
    token_usage = meter_of({"timings": timings(7)}, deltas=5)
    assert counts(token_usage) == (31, 30, 7, False)
    token_usage.settle()
    assert counts(token_usage) == (31, 30, 7, True)


def test_timings_do_not_override_usage() -> None:
    assert counts(meter_of({"usage": usage(7)}, {"timings": {"predicted_n": 1}})) == (31, 30, 7, True)
    assert counts(meter_of({"usage": usage(7), "timings": {"predicted_n": 1}})) == (31, 30, 7, True)


def test_the_last_of_several_usages_counts() -> None:
    assert counts(meter_of({"usage": usage(1)}, {"usage": usage(9)})) == (31, 30, 9, True)


def test_a_stream_that_ended_early_is_counted_by_its_deltas() -> None:
    assert counts(meter_of({"usage": None}, {}, deltas=5)) == (0, 0, 5, False)
    assert counts(meter_of({"timings": timings(3)}, deltas=5)) == (31, 30, 5, False)


def test_the_usage_of_a_success_without_counts_stays_an_estimate() -> None:
    token_usage = meter_of({}, deltas=5)
    token_usage.settle()
    assert counts(token_usage) == (0, 0, 5, False)


@pytest.mark.parametrize("nothing", [None, {}, [], "7", {"prompt_tokens": None}, {"completion_tokens": "7"}])
def test_usage_without_counts_is_ignored(nothing: object) -> None:
    assert counts(meter_of({"timings": timings(3)}, {"usage": nothing}, deltas=5)) == (31, 30, 5, False)


def test_invalid_counts_are_zero() -> None:
    odd = {"prompt_tokens": 3, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": 1.5}}
    assert counts(meter_of({"usage": odd})) == (3, 0, 0, True)
    assert counts(meter_of({"usage": odd | {"prompt_tokens_details": []}})) == (3, 0, 0, True)


def test_the_running_usage_grows_with_the_chunks_that_pass() -> None:
    token_usage = TokenUsage()
    assert token_usage.running_usage() == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    token_usage.deltas = 2
    assert token_usage.running_usage()["total_tokens"] == 2
    token_usage.read({"timings": timings(3)})
    assert token_usage.running_usage() == {"prompt_tokens": 31, "completion_tokens": 3, "total_tokens": 34}


def test_repr_marks_an_estimate() -> None:
    assert (
        repr(meter_of(deltas=5)),
        repr(meter_of({"usage": usage(7)})),
    ) == ("<TokenUsage ~0+5 tokens>", "<TokenUsage 31+7 tokens>")


def test_the_deltas_of_all_choices_count() -> None:
    """llama-server states the tokens of one of them."""
    token_usage = TokenUsage(parts=2)
    token_usage.deltas = 17
    token_usage.read({"usage": {"prompt_tokens": 3, "completion_tokens": 9}})
    assert (token_usage.prompt_tokens, token_usage.completed) == (3, 17)


def test_impossibly_great_counts_are_ignored() -> None:
    """The sum of two such could not be written as JSON, and with it no list of the last requests."""
    beyond = {"prompt_tokens": 2**64 - 1, "completion_tokens": 5, "cache_read_input_tokens": 2**64 - 1}
    assert counts(meter_of({"usage": beyond})) == (0, 0, 5, True)
