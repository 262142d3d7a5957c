"""Restarts in virtual time: the two rules and the pause between starts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.processes.restart_policy import RestartLimits, RestartPolicy

LIMITS = RestartLimits()


def crash_loop(policy: RestartPolicy, ready: bool, starts: int, life_s: float = 0.0) -> list[float]:
    """Return the times of the starts until the policy gives up."""
    now, times = 0.0, list[float]()
    while len(times) < starts and not policy.is_exhausted:
        if times:
            now += policy.delay_s(now)
        policy.started(now)
        times.append(now)
        if ready:
            policy.became_ready()
        now += life_s
    return times


def test_scenario_122_a_hopeless_server_is_started_six_times_with_growing_pauses() -> None:
    times = crash_loop(RestartPolicy(LIMITS), ready=False, starts=100)

    assert times == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]


def test_a_server_that_was_ready_each_time_is_slowed_down_and_not_given_up() -> None:
    policy = RestartPolicy(LIMITS)

    times = crash_loop(policy, ready=True, starts=13)

    assert times[:7] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5]
    assert (times[7], times[12]) == (35.5, 85.5)
    assert not policy.is_exhausted


def test_no_single_death_costs_more_than_ten_seconds() -> None:
    policy = RestartPolicy(LIMITS)
    times = crash_loop(policy, ready=True, starts=50, life_s=3.0)
    pauses = [later - earlier - 3.0 for earlier, later in itertools.pairwise(times)]
    assert max(pauses) == LIMITS.window_s / LIMITS.max_starts == 10.0
    policy.started(1e6)
    policy.became_ready()
    assert policy.delay_s(1e6 + 3600) == LIMITS.first_delay_s


def test_a_process_that_was_given_up_rests_twice_as_long_each_time_until_it_was_ready() -> None:
    policy = RestartPolicy(LIMITS)
    rests = []
    for _ in range(8):
        policy.given_up()
        policy.forgive()
        rests.append(policy.rest_s)
    assert rests == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    policy.became_ready()
    assert policy.rest_s == 60


def test_becoming_ready_resets_the_pause() -> None:
    policy = RestartPolicy(LIMITS)
    crash_loop(policy, ready=False, starts=5)

    policy.became_ready()

    assert policy.delay_s(1000.0) == LIMITS.first_delay_s


def test_forgiving_keeps_the_rate() -> None:
    policy = RestartPolicy(LIMITS)
    crash_loop(policy, ready=False, starts=6)

    policy.forgive()

    assert not policy.is_exhausted
    assert policy.delay_s(15.5) == 10.0


def test_the_pause_is_capped_however_often_it_fails() -> None:
    policy = RestartPolicy(RestartLimits(max_starts=10_000, window_s=0.0))
    for _ in range(5000):
        policy.started(0.0)

    assert policy.delay_s(0.0) == LIMITS.max_delay_s


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 40)), min_size=10, max_size=40))
def test_no_window_ever_sees_more_than_ten_starts(lives: list[tuple[bool, float]]) -> None:
    policy, now, times = RestartPolicy(LIMITS), 0.0, list[float]()
    for becomes_ready, life_s in lives:
        if policy.is_exhausted:
            policy.forgive()
        now += policy.delay_s(now) if times else 0.0
        policy.started(now)
        times.append(now)
        if becomes_ready:
            policy.became_ready()
        now += life_s

    for earlier, later in zip(times, times[10:], strict=False):
        assert later - earlier >= LIMITS.window_s - 1e-6
