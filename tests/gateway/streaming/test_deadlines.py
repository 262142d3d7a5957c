"""Each limit trips by itself and in time; the client hears something in every silence and only there."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import uvloop

from slotgate.gateway.streaming.deadlines import Deadlines, StreamLimits, StreamTimes
from tests.support.virtual_time import run_virtual

NEVER = 10_000.0
LIMITS = StreamLimits(
    keepalive_interval_s=NEVER,
    first_byte_s=NEVER,
    idle_s=NEVER,
    total_s=NEVER,
    client_stall_timeout_s=NEVER,
)
Step = tuple[float, Callable[["Course"], None]]


@dataclass
class Course:
    """One request: its times change as the steps say; what the watchdog does is noted with its time."""

    limits: StreamLimits
    times: StreamTimes = field(default_factory=lambda: StreamTimes(began_at=0.0))
    watchdog: Deadlines = field(init=False)
    heard: list[float] = field(default_factory=list)
    expired: list[tuple[float, str]] = field(default_factory=list)

    async def run(self, steps: list[Step], until: float) -> None:
        loop = asyncio.get_running_loop()
        watchdog = self.watchdog = Deadlines(
            loop,
            self.limits,
            lambda: self.times,
            on_keepalive=lambda: self.heard.append(round(loop.time(), 3)),
            on_expired=self._expire,
        )
        for at, step in steps:
            await asyncio.sleep(at - loop.time())
            step(self)
        await asyncio.sleep(until - loop.time())
        watchdog.close()
        await asyncio.sleep(NEVER * 3)

    def _expire(self, limit: str) -> None:
        self.expired.append((round(asyncio.get_running_loop().time(), 3), limit))
        if limit != "client_stall":
            self.times.asked_at = None


def run(*steps: Step, until: float = 100.0, **limits: float) -> Course:
    course = Course(replace(LIMITS, **limits))
    run_virtual(course.run(list(steps), until))
    return course


def asked(course: Course) -> None:
    course.times.asked_at = asyncio.get_running_loop().time()


def event(course: Course) -> None:
    first = course.times.last_event_at is None
    course.times.last_event_at = asyncio.get_running_loop().time()
    if first:
        course.watchdog.begin()


def passed(course: Course) -> None:
    course.times.untimed += 1


def sending(course: Course) -> None:
    course.times.sending_since = asyncio.get_running_loop().time()


def sent(course: Course) -> None:
    course.times.sending_since = None


def stopped(course: Course) -> None:
    course.times.paused_since = asyncio.get_running_loop().time()


def resumed(course: Course) -> None:
    now = asyncio.get_running_loop().time()
    assert course.times.paused_since is not None
    course.times.paused_s += now - course.times.paused_since
    course.times.paused_since = None
    course.times.resumed_at = now


# Each limit trips exactly it

BUSY = [(float(at), event) for at in range(1, 100)]


@pytest.mark.parametrize(
    ("limits", "steps", "expected"),
    [
        ({"first_byte_s": 5}, [(2, asked)], [(7, "first_byte_timeout")]),
        ({"first_byte_s": 5}, [(2, asked), (6, event)], []),
        ({"first_byte_s": 5}, [], []),
        ({"idle_s": 5}, [(2, asked), (6, event)], [(11, "idle_timeout")]),
        ({"idle_s": 5}, [(2, asked), (6, event), (10, event)], [(15, "idle_timeout")]),
        ({"idle_s": 5}, [(2, asked)], []),
        ({"total_s": 50}, [(0.5, asked), *BUSY], [(50.5, "total_timeout")]),
        ({"total_s": 50}, [], []),
        ({"client_stall_timeout_s": 5}, [(0.5, asked), (1, event), (2, sending)], [(7, "client_stall")]),
        ({"client_stall_timeout_s": 5}, [(2, sending), (6, sent), (6.5, sending), (11, sent)], []),
        ({"client_stall_timeout_s": 5}, [(2, sending)], [(7, "client_stall")]),
    ],
)
def test_scenario_063_each_limit_trips_by_itself(
    limits: dict[str, float], steps: list[Step], expected: list[tuple[float, str]]
) -> None:
    assert expected == run(*steps, **limits).expired


@pytest.mark.parametrize("limit", ["first_byte", "idle", "total"])
def test_a_limit_trips_in_time_however_long_the_others_are(limit: str) -> None:
    steps = [(30.0, asked)] if limit == "first_byte" else [(29.9, asked), (30.0, event)]
    [(at, name)] = run(*steps, **{f"{limit}_s": 0.25}).expired
    assert (f"{limit}_timeout", 30.25 if limit != "total" else 30.15) == (name, at)


def test_a_drip_reader_is_cut_when_it_has_stopped_the_upstream_for_that_long_in_all() -> None:
    course = run(
        (1, asked),
        (2, event),
        (10, stopped),
        (13, resumed),
        (20, stopped),
        (21, resumed),
        (30, stopped),
        client_stall_timeout_s=5,
    )
    assert course.expired == [(31, "client_stall")]


def test_an_upstream_that_was_stopped_is_not_idle() -> None:
    waiting = [(1.0, asked), (2.0, event), (3.0, stopped)]
    assert run(*waiting, idle_s=5).expired == []
    assert run(*waiting, (20, resumed), idle_s=5).expired == [(25, "idle_timeout")]
    assert run(*waiting, (20, resumed), (22, event), idle_s=5).expired == [(27, "idle_timeout")]


def test_a_client_that_stalls_is_cut_after_another_limit_has_ended_the_stream_too() -> None:
    course = run((1, asked), (2, event), (8, sending), idle_s=10, client_stall_timeout_s=10)
    assert course.expired == [(12, "idle_timeout"), (18, "client_stall")]


def test_nothing_trips_after_the_end() -> None:
    course = run((1, asked), (2, event), until=3, idle_s=5, total_s=5, keepalive_interval_s=5)
    assert (course.expired, course.heard) == ([], [])


# Keep-alives


def test_scenario_058_the_client_hears_something_in_every_interval_of_silence() -> None:
    assert run((40, asked), keepalive_interval_s=15).heard == [15, 30, 45, 60, 75, 90]


def test_no_keepalive_while_events_flow_and_again_in_the_next_silence() -> None:
    flowing = [(at / 2, event) for at in range(1, 101)]
    assert run((0.1, asked), *flowing, until=60, keepalive_interval_s=3).heard == [53, 56, 59]


def test_a_keepalive_is_not_added_to_what_the_client_does_not_take() -> None:
    course = run((1, asked), (2, event), (8, sending), (46, sent), until=70, keepalive_interval_s=10)
    assert course.heard == [52, 62]


# What is counted and not timed


FLOWING = [(at / 10, passed) for at in range(21, 400)]
"""From the second second to the fortieth."""


def test_no_keepalive_while_tokens_pass_that_nobody_times_and_none_late_in_the_silence_behind() -> None:
    heard = run((1, asked), (2, event), *FLOWING, until=90, keepalive_interval_s=4).heard
    assert 39.9 + 3 <= heard[0] <= 39.9 + 4
    assert [b - a for a, b in itertools.pairwise(heard)] == [4.0] * (len(heard) - 1)
    assert heard[-1] > 90 - 4


@pytest.mark.parametrize("last", [35.1, 36.3, 37.5, 38.7, 39.9])
def test_a_cut_is_never_early_after_tokens_that_nobody_times(last: float) -> None:
    flowing = [step for step in FLOWING if step[0] <= last]
    [(at, limit)] = run((1, asked), (2, event), *flowing, until=90, idle_s=8).expired
    assert limit == "idle_timeout"
    assert last + 8 <= at <= last + 8 + 2


@pytest.mark.parametrize("last", [2.1, 3.0, 4.9])
def test_the_first_looks_come_with_the_first_event(last: float) -> None:
    passing = [(at / 10, passed) for at in range(21, 50) if at / 10 <= last]
    [(cut_at, _)] = run((1, asked), (2, event), *passing, idle_s=5).expired
    assert last + 5 <= cut_at <= last + 5 + 5 / 4
    course = run((1, asked), (2, event), *passing, keepalive_interval_s=5)
    assert last + 5 - 5 / 4 <= course.heard[0] <= last + 5


@pytest.mark.parametrize("every", [5, 7])
def test_a_token_that_passes_now_and_then_is_enough(every: int) -> None:
    """A silence that is nearly as long as the interval may be broken a little early."""
    rare = [(float(at), passed) for at in range(7, 200, every)]
    course = run((1, asked), (2, event), *rare, until=200, idle_s=8, keepalive_interval_s=8)
    assert course.expired == []
    assert every == 7 or course.heard == []


def test_nothing_is_looked_at_again_and_again_while_a_request_waits() -> None:
    looked = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def times() -> StreamTimes:
            looked.append(loop.time())
            return StreamTimes(began_at=0.0)

        watchdog = Deadlines(
            loop,
            replace(LIMITS, keepalive_interval_s=10),
            times,
            on_keepalive=lambda: None,
            on_expired=lambda _: None,
        )
        await asyncio.sleep(95)
        watchdog.close()

    run_virtual(main())
    assert looked == [10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_the_first_event_may_come_in_the_very_moment_of_a_keep_alive() -> None:
    """On the loop that `serve` runs, whose handles know no time when the moment is as good as now."""
    near = replace(LIMITS, keepalive_interval_s=0.0002)
    heard = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        times = StreamTimes(began_at=loop.time())
        watchdog = Deadlines(
            loop, near, lambda: times, on_keepalive=lambda: heard.append(1), on_expired=print
        )
        watchdog.begin()
        await asyncio.sleep(0.01)
        watchdog.close()

    uvloop.run(main())
    assert heard
