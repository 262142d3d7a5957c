"""A tenant has at most `max_concurrent` requests in the gateway, wherever they are."""

from __future__ import annotations

import pytest

from slotgate.admission import Concurrency, Refusal, Refused


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_one_too_many_is_refused_and_the_next_one_is_served_when_one_has_left() -> None:
    concurrency = Concurrency(Clock())
    concurrency.max_concurrent = {"a": 2}
    with concurrency.entered("a"):
        with concurrency.entered("a"):
            with pytest.raises(Refused) as refused, concurrency.entered("a"):
                pass
            assert refused.value.refusal is Refusal.TENANT_CONCURRENCY
            with concurrency.entered("b"):
                assert concurrency.inside("b") == 0, "a tenant without a limit is not counted"
        with concurrency.entered("a"):
            assert concurrency.inside("a") == 2
    assert concurrency.inside("a") == 0


def test_a_request_that_fails_has_left() -> None:
    concurrency = Concurrency(Clock())
    concurrency.max_concurrent = {"a": 1}
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), concurrency.entered("a"):
            raise ValueError("x")
    assert concurrency.inside("a") == 0


def test_the_refused_are_told_when_the_oldest_request_has_probably_ended() -> None:
    clock = Clock()
    concurrency = Concurrency(clock)
    concurrency.max_concurrent = {"a": 1}
    for _ in range(50):
        with concurrency.entered("a"):
            clock.now += 30
    with concurrency.entered("a"):
        clock.now += 20
        with pytest.raises(Refused) as refused, concurrency.entered("a"):
            pass
    assert refused.value.retry_after_s == pytest.approx(10, rel=0.01)


def test_a_lower_limit_evicts_nobody() -> None:
    concurrency = Concurrency(Clock())
    concurrency.max_concurrent = {"a": 2}
    with concurrency.entered("a"), concurrency.entered("a"):
        concurrency.max_concurrent = {"a": 1}
        with pytest.raises(Refused), concurrency.entered("a"):
            pass
        assert concurrency.inside("a") == 2
