"""The limits of a tenant in a minute and in a day, on clocks that a test turns."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotgate.admission import Limiter, Refusal, Refused, TenantLimits, UsageReservation

START = datetime.datetime(2026, 11, 29, 23, 0, tzinfo=datetime.UTC)


class Clocks:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def utc(self) -> datetime.datetime:
        return START + datetime.timedelta(seconds=self.now - 1000.0)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def limited(clocks: Clocks) -> Callable[..., Limiter]:
    def make(**limits: int) -> Limiter:
        limiter = Limiter(clocks.time, clocks.utc)
        limiter.configure({"a": TenantLimits(**limits)})
        return limiter

    return make


def refused(limiter: Limiter, tokens: float = 1) -> Refused:
    with pytest.raises(Refused) as caught:
        limiter.reserve("a", tokens)
    return caught.value


def test_requests_of_a_minute(limited: Callable[..., Limiter], clocks: Clocks) -> None:
    limiter = limited(requests_per_minute=3)
    for _ in range(3):
        limiter.reserve("a", 10)
    no = refused(limiter)
    assert no.refusal is Refusal.RATE_LIMITED
    assert no.retry_after_s == pytest.approx(20)
    assert "3 requests a minute" in str(no)
    clocks.now += 19.9
    assert refused(limiter).retry_after_s == pytest.approx(0.1)
    clocks.now += 0.2
    limiter.reserve("a", 10)
    assert refused(limiter).retry_after_s == pytest.approx(19.9)


def test_an_idle_minute_saves_up_no_more_than_the_limit(
    limited: Callable[..., Limiter], clocks: Clocks
) -> None:
    limiter = limited(requests_per_minute=2)
    clocks.now += 3600
    limiter.reserve("a", 1)
    limiter.reserve("a", 1)
    refused(limiter)


def test_tokens_are_reserved_and_corrected(limited: Callable[..., Limiter], clocks: Clocks) -> None:
    limiter = limited(tokens_per_minute=600)
    reservation = limiter.reserve("a", 500)
    no = refused(limiter, 200)
    assert 0 < (no.retry_after_s or 0) < 10, "a reservation is in the way, which ends before the minute"
    reservation.settle(100)
    limiter.reserve("a", 200)
    state = limiter.tokens_of("a")
    assert state is not None
    assert (state.limit, state.remaining) == (600, 300)
    assert state.full_in_s == pytest.approx(10)
    reservation.settle(700)
    assert refused(limiter, 1).retry_after_s == pytest.approx(10.1), "a debt has to be worked off first"


def test_request_above_the_rest_of_the_day_is_let_in(limited: Callable[..., Limiter]) -> None:
    limiter = limited(tokens_per_day=5000)
    limiter.reserve("a", 27).settle(27)
    limiter.reserve("a", 32_000)
    assert (limiter.used_today("a"), limiter.reserved_today("a")) == (27, 4973)


def test_an_estimate_above_the_rest_of_the_day_does_not_end_the_day(limited: Callable[..., Limiter]) -> None:
    """Estimates of prompts can be wrong. The day is over when the tokens that were used reach the quota."""
    limiter = limited(tokens_per_day=100)
    limiter.reserve("a", 90).settle(90)
    with pytest.raises(Refused) as caught:
        limiter.reserve("a", 45, 11)
    assert caught.value.refusal is Refusal.QUOTA_EXCEEDED, "the text of the prompt alone is too much"
    late = limiter.reserve("a", 45, 10)
    assert (late.of_day, late.day_left) == (10, 10)
    late.settle(45)
    with pytest.raises(Refused) as caught:
        limiter.reserve("a", 1)
    assert (caught.value.refusal, caught.value.retry_after_s) == (Refusal.QUOTA_EXCEEDED, 3600)


def test_a_tenant_that_a_reload_drops_and_another_brings_back_has_used_the_same(
    limited: Callable[..., Limiter], clocks: Clocks
) -> None:
    limiter = limited(tokens_per_day=100)
    running = limiter.reserve("a", 10)
    limiter.reserve("a", 50).settle(50)
    limiter.configure({"b": TenantLimits()})
    running.settle(20)
    limiter.configure({"a": TenantLimits(tokens_per_day=100)})
    assert limiter.used_today("a") == 70
    limiter.configure({"b": TenantLimits()})
    clocks.now += 2 * 86_400
    assert limiter.used_today("a") == 0
    assert "a" not in limiter._accounts


def test_request_above_the_minute_is_let_in_when_nothing_is_used(
    limited: Callable[..., Limiter], clocks: Clocks
) -> None:
    limiter = limited(tokens_per_minute=100)
    limiter.reserve("a", 5).settle(5)
    assert refused(limiter, 5000).retry_after_s == pytest.approx(3)
    clocks.now += 3.1
    limiter.reserve("a", 5000)


def test_refusal_takes_nothing_from_any_limit(limited: Callable[..., Limiter]) -> None:
    limiter = limited(requests_per_minute=2, tokens_per_minute=100, tokens_per_day=150)
    limiter.reserve("a", 90)
    for _ in range(5):
        refused(limiter, 50)
    state = limiter.requests_of("a")
    assert state is not None
    assert (state.remaining, limiter.reserved_today("a")) == (1, 90)
    limiter.reserve("a", 10)


def test_reservations_in_the_way_give_a_short_wait_and_do_not_use_up_the_day(
    limited: Callable[..., Limiter], clocks: Clocks
) -> None:
    limiter = limited(tokens_per_day=100_000)
    running = [limiter.reserve("a", 32_000) for _ in range(3)]
    no = refused(limiter, 32_000)
    assert (no.refusal, no.retry_after_s) == (Refusal.RATE_LIMITED, 2.0)
    assert "96000 are reserved by running requests" in str(no)
    for reservation in running:
        clocks.now += 4
        reservation.settle(500)
    assert limiter.used_today("a") == 1500
    limiter.reserve("a", 32_000)


def test_reservations_that_have_ended_leave_no_rest_that_is_in_the_way(
    limited: Callable[..., Limiter],
) -> None:
    """Sums of fractions leave a rest, which would be in the way of a request for all that is left."""
    limiter = limited(tokens_per_day=1000)
    running = [limiter.reserve("a", estimate) for estimate in (100.1, 100.1, 33.3)]
    for reservation in running:
        reservation.settle(333)
    limiter.reserve("a", 1000.0)
    assert limiter.reserved_today("a") == 1


def test_wait_for_a_reservation_is_learnt_from_requests_that_ran(
    limited: Callable[..., Limiter], clocks: Clocks
) -> None:
    limiter = limited(tokens_per_day=1000)
    for _ in range(40):
        reservation = limiter.reserve("a", 500)
        clocks.now += 30
        reservation.settle(1)
    limiter.reserve("a", 960)
    assert refused(limiter, 500).retry_after_s == pytest.approx(30, rel=0.01)


def test_reset_of_a_minute_leaves_running_reservations_out(limited: Callable[..., Limiter]) -> None:
    limiter = limited(tokens_per_minute=600)
    limiter.reserve("a", 500)
    state = limiter.tokens_of("a")
    assert state is not None
    assert (state.remaining, state.full_in_s) == (100, 0)


def test_requests_without_a_slot_have_a_bucket_of_their_own(limited: Callable[..., Limiter]) -> None:
    limiter = limited(requests_per_minute=2)
    for _ in range(2):
        limiter.take_slot_free_request("a")
    with pytest.raises(Refused) as caught:
        limiter.take_slot_free_request("a")
    assert caught.value.refusal is Refusal.RATE_LIMITED
    limiter.reserve("a", 1)
    limiter.take_slot_free_request("without limits")


def test_a_refund_gives_back_all_that_the_request_took(limited: Callable[..., Limiter]) -> None:
    limiter = limited(requests_per_minute=1, tokens_per_minute=100, tokens_per_day=100)
    reservation = limiter.reserve("a", 100)
    refused(limiter)
    reservation.refund()
    reservation.refund()
    assert (limiter.used_today("a"), limiter.reserved_today("a")) == (0, 0)
    limiter.reserve("a", 100).refund()
    settled = limiter.reserve("a", 100)
    settled.settle(70)
    settled.refund()
    assert limiter.used_today("a") == 0


def test_a_quota_lasts_till_midnight_utc(limited: Callable[..., Limiter], clocks: Clocks) -> None:
    limiter = limited(tokens_per_day=1000)
    old = limiter.reserve("a", 800)
    limiter.reserve("a", 100).settle(1000)
    no = refused(limiter, 300)
    assert (no.refusal, no.retry_after_s) == (Refusal.QUOTA_EXCEEDED, 3600)
    clocks.now += 3599
    refused(limiter, 300)
    clocks.now += 2
    limiter.reserve("a", 300)
    assert (limiter.used_today("a"), limiter.reserved_today("a")) == (0, 300)
    old.settle(5000)
    assert limiter.used_today("a") == 0, "tokens of yesterday are not counted today"
    assert limiter.reserved_today("a") == 300


def test_tokens_used_before_a_restart_count_for_the_same_day(limited: Callable[..., Limiter]) -> None:
    limiter = limited(tokens_per_day=1000)
    limiter.restore(START.date() - datetime.timedelta(days=1), {"a": 900})
    assert limiter.used_today("a") == 0
    limiter.restore(START.date(), {"a": 900, "gone": 5})
    limiter.reserve("a", 101).settle(100)
    assert refused(limiter).refusal is Refusal.QUOTA_EXCEEDED


def test_new_limits_keep_what_was_used(limited: Callable[..., Limiter], clocks: Clocks) -> None:
    limiter = limited(requests_per_minute=10, tokens_per_day=100)
    for _ in range(5):
        limiter.reserve("a", 10).settle(10)
    limiter.configure({"a": TenantLimits(requests_per_minute=6, tokens_per_day=60), "b": TenantLimits()})
    limiter.reserve("a", 10).settle(10)
    assert refused(limiter, 0).refusal is Refusal.RATE_LIMITED
    clocks.now += 60
    assert refused(limiter).refusal is Refusal.QUOTA_EXCEEDED
    limiter.configure({})
    limiter.reserve("a", 1e9)
    assert (limiter.requests_of("a"), limiter.tokens_of("a"), limiter.used_today("a")) == (None, None, 60)


def test_a_smaller_limit_makes_no_debt(limited: Callable[..., Limiter], clocks: Clocks) -> None:
    limiter = limited(tokens_per_minute=100_000)
    used = limiter.reserve("a", 90_000)
    used.settle(90_000)
    limiter.configure({"a": TenantLimits(tokens_per_minute=1000)})
    assert refused(limiter, 1000).retry_after_s == pytest.approx(60)
    used.settle(90_500)
    limiter.configure({"a": TenantLimits(tokens_per_minute=500)})
    assert refused(limiter, 500).retry_after_s == pytest.approx(120), "a debt stays one"
    clocks.now += 120
    limiter.reserve("a", 500)


def test_a_quota_that_comes_later_counts_the_whole_day(limited: Callable[..., Limiter]) -> None:
    limiter = limited()
    limiter.reserve("a", 400).settle(450)
    limiter.configure({"a": TenantLimits(tokens_per_day=450)})
    assert refused(limiter, 51).refusal is Refusal.QUOTA_EXCEEDED
    limiter.configure({"a": TenantLimits()})
    limiter.reserve("a", 50).settle(50)
    limiter.configure({"a": TenantLimits(tokens_per_day=500)})
    assert refused(limiter).refusal is Refusal.QUOTA_EXCEEDED


def test_limit_set_while_a_request_runs_gets_back_nothing_that_was_not_taken_from_it(
    limited: Callable[..., Limiter],
) -> None:
    limiter = limited()
    running = limiter.reserve("a", 5000)
    limiter.configure({"a": TenantLimits(tokens_per_minute=1000)})
    limiter.reserve("a", 600).settle(600)
    running.settle(300)
    state = limiter.tokens_of("a")
    assert state is not None
    assert state.remaining == 100


def test_a_tenant_without_limits_is_never_refused(limited: Callable[..., Limiter]) -> None:
    limiter = limited(requests_per_minute=1)
    for _ in range(100):
        limiter.reserve("b", 1e6).settle(1e9)
    assert limiter.requests_of("b") is None


class Limits(RuleBasedStateMachine):
    """Three things hold in every state: the day's count is the sum of settled tokens that were not refunded,
    running requests hold their reservations, and a refused request leaves the limits unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clocks = Clocks()
        self.limiter = Limiter(self.clocks.time, self.clocks.utc)
        self.limiter.configure(
            {"a": TenantLimits(requests_per_minute=5, tokens_per_minute=1000, tokens_per_day=20_000)}
        )
        self.day = self.limiter.day
        self.live: list[tuple[UsageReservation, datetime.date]] = []
        self.counted: dict[int, float] = {}
        """UsageReservation -> tokens that were settled today."""
        self.running: dict[int, float] = {}
        """UsageReservation -> tokens that are reserved of today."""

    @rule(tokens=st.integers(0, 3000))
    def reserve(self, tokens: int) -> None:
        before = self._seen()
        no: Refused | None = None
        try:
            reservation = self.limiter.reserve("a", tokens)
        except Refused as refused:
            no = refused
        if no is not None:
            assert (no.retry_after_s or 0) > 0
            assert self._seen() == before
            return
        self._new_day()
        self.live.append((reservation, self.limiter.day))
        self.running[id(reservation)] = reservation.of_day

    @rule(tokens=st.integers(0, 3000), which=st.integers(0, 100))
    def settle(self, tokens: int, which: int) -> None:
        if self.live:
            reservation, day = self.live[which % len(self.live)]
            reservation.settle(tokens)
            if day == self.limiter.day:
                self.running.pop(id(reservation), None)
                self.counted[id(reservation)] = tokens

    @rule(which=st.integers(0, 100))
    def refund(self, which: int) -> None:
        if self.live:
            reservation, day = self.live.pop(which % len(self.live))
            reservation.refund()
            if day == self.limiter.day:
                self.counted.pop(id(reservation), None)
                self.running.pop(id(reservation), None)

    @rule(seconds=st.sampled_from([0.5, 7, 61, 3700, 90_000]))
    def wait(self, seconds: float) -> None:
        self.clocks.now += seconds
        self.limiter.used_today("a")
        self._new_day()

    @invariant()
    def the_day_adds_up(self) -> None:
        assert self.limiter.used_today("a") == pytest.approx(sum(self.counted.values()))
        assert self.limiter.reserved_today("a") == pytest.approx(sum(self.running.values()), abs=1e-6)

    @invariant()
    def nothing_is_above_its_limit(self) -> None:
        for state in (self.limiter.requests_of("a"), self.limiter.tokens_of("a")):
            assert state is not None
            assert 0 <= state.remaining <= state.limit
            assert state.full_in_s >= 0

    def _seen(self) -> tuple[object, ...]:
        limiter = self.limiter
        counts = limiter.used_today("a"), limiter.reserved_today("a")
        return limiter.requests_of("a"), limiter.tokens_of("a"), *counts

    def _new_day(self) -> None:
        if self.limiter.day != self.day:
            self.day = self.limiter.day
            self.counted.clear()
            self.running.clear()


Limits.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLimits = Limits.TestCase
