"""Restarts in virtual time: the two rules and the pause between starts."""

from __future__ import annotations

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

    assert times[:6] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert (times[6], times[12]) == (60.0, 120.0)
    assert not policy.is_exhausted


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
    assert policy.delay_s(15.5) == 60.0 - 15.5


def test_the_pause_is_capped_however_often_it_fails() -> None:
    policy = RestartPolicy(RestartLimits(max_starts=10_000, window_s=0.0))
    for _ in range(5000):
        policy.started(0.0)

    assert policy.delay_s(0.0) == LIMITS.max_delay_s


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 40)), min_size=10, max_size=40))
def test_no_window_ever_sees_more_starts_than_the_limit(lives: list[tuple[bool, float]]) -> None:
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

    for earlier, later in zip(times, times[LIMITS.max_starts :], strict=False):
        assert later - earlier >= LIMITS.window_s - 1e-6
