"""Each limit expires by itself and in time. Keep-alives are sent in every silence, and only then."""

from __future__ import annotations

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
Step = tuple[float, Callable[["TimedRequest"], None]]


@dataclass
class TimedRequest:
    """A request whose times change by steps. It notes the calls of the deadlines, with their times."""

    limits: StreamLimits
    times: StreamTimes = field(default_factory=lambda: StreamTimes(began_at=0.0))
    deadlines: Deadlines = field(init=False)
    heard: list[float] = field(default_factory=list)
    expired: list[tuple[float, str]] = field(default_factory=list)

    async def run(self, steps: list[Step], until: float) -> None:
        loop = asyncio.get_running_loop()
        deadlines = self.deadlines = Deadlines(
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
        deadlines.close()
        await asyncio.sleep(NEVER * 3)

    def _expire(self, limit: str) -> None:
        self.expired.append((round(asyncio.get_running_loop().time(), 3), limit))
        if limit != "client_stall":
            self.times.asked_at = None


def run(*steps: Step, until: float = 100.0, **limits: float) -> TimedRequest:
    request = TimedRequest(replace(LIMITS, **limits))
    run_virtual(request.run(list(steps), until))
    return request


def asked(request: TimedRequest) -> None:
    request.times.asked_at = asyncio.get_running_loop().time()


def event(request: TimedRequest) -> None:
    first = request.times.last_event_at is None
    request.times.last_event_at = asyncio.get_running_loop().time()
    if first:
        request.deadlines.begin()


def passed(request: TimedRequest) -> None:
    request.times.untimed += 1


def sending(request: TimedRequest) -> None:
    request.times.sending_since = asyncio.get_running_loop().time()


def sent(request: TimedRequest) -> None:
    request.times.sending_since = None


def stopped(request: TimedRequest) -> None:
    request.times.paused_since = asyncio.get_running_loop().time()


def resumed(request: TimedRequest) -> None:
    now = asyncio.get_running_loop().time()
    assert request.times.paused_since is not None
    request.times.paused_s += now - request.times.paused_since
    request.times.paused_since = None
    request.times.resumed_at = now


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
def test_scenario_063_each_limit_expires_by_itself(
    limits: dict[str, float], steps: list[Step], expected: list[tuple[float, str]]
) -> None:
    assert expected == run(*steps, **limits).expired


@pytest.mark.parametrize("limit", ["first_byte", "idle", "total"])
def test_a_limit_expires_in_time_although_the_others_are_long(limit: str) -> None:
    steps = [(30.0, asked)] if limit == "first_byte" else [(29.9, asked), (30.0, event)]
    [(at, name)] = run(*steps, **{f"{limit}_s": 0.25}).expired
    assert (f"{limit}_timeout", 30.25 if limit != "total" else 30.15) == (name, at)


def test_pauses_of_the_upstream_add_up_to_the_stall_limit() -> None:
    request = run(
        (1, asked),
        (2, event),
        (10, stopped),
        (13, resumed),
        (20, stopped),
        (21, resumed),
        (30, stopped),
        client_stall_timeout_s=5,
    )
    assert request.expired == [(31, "client_stall")]


def test_a_paused_upstream_is_not_idle() -> None:
    waiting = [(1.0, asked), (2.0, event), (3.0, stopped)]
    assert run(*waiting, idle_s=5).expired == []
    assert run(*waiting, (20, resumed), idle_s=5).expired == [(25, "idle_timeout")]
    assert run(*waiting, (20, resumed), (22, event), idle_s=5).expired == [(27, "idle_timeout")]


def test_the_stall_limit_applies_after_another_limit_has_ended_the_stream() -> None:
    request = run((1, asked), (2, event), (8, sending), idle_s=10, client_stall_timeout_s=10)
    assert request.expired == [(12, "idle_timeout"), (18, "client_stall")]


def test_no_limit_expires_after_the_end() -> None:
    request = run((1, asked), (2, event), until=3, idle_s=5, total_s=5, keepalive_interval_s=5)
    assert (request.expired, request.heard) == ([], [])


# Keep-alives


def test_scenario_058_a_silent_stream_gets_a_keepalive_in_every_interval() -> None:
    assert run((40, asked), keepalive_interval_s=15).heard == [15, 30, 45, 60, 75, 90]


def test_keepalives_stop_while_events_flow_and_resume_in_the_next_silence() -> None:
    flowing = [(at / 2, event) for at in range(1, 101)]
    assert run((0.1, asked), *flowing, until=60, keepalive_interval_s=3).heard == [53, 56, 59]


def test_no_keepalive_is_added_while_a_send_is_under_way() -> None:
    request = run((1, asked), (2, event), (8, sending), (46, sent), until=70, keepalive_interval_s=10)
    assert request.heard == [52, 62]


# Tokens that are counted and not timed


FLOWING = [(at / 10, passed) for at in range(21, 400)]
"""Tokens from second 2 to second 40."""


def test_untimed_tokens_suppress_keepalives_and_do_not_delay_the_next_one() -> None:
    heard = run((1, asked), (2, event), *FLOWING, until=90, keepalive_interval_s=4).heard
    assert 39.9 + 3 <= heard[0] <= 39.9 + 4
    assert [b - a for a, b in itertools.pairwise(heard)] == [4.0] * (len(heard) - 1)
    assert heard[-1] > 90 - 4


@pytest.mark.parametrize("last", [35.1, 36.3, 37.5, 38.7, 39.9])
def test_the_idle_limit_is_never_early_after_untimed_tokens(last: float) -> None:
    flowing = [step for step in FLOWING if step[0] <= last]
    [(at, limit)] = run((1, asked), (2, event), *flowing, until=90, idle_s=8).expired
    assert limit == "idle_timeout"
    assert last + 8 <= at <= last + 8 + 2


@pytest.mark.parametrize("last", [2.1, 3.0, 4.9])
def test_the_first_event_starts_the_looks_at_the_count(last: float) -> None:
    passing = [(at / 10, passed) for at in range(21, 50) if at / 10 <= last]
    [(cut_at, _)] = run((1, asked), (2, event), *passing, idle_s=5).expired
    assert last + 5 <= cut_at <= last + 5 + 5 / 4
    request = run((1, asked), (2, event), *passing, keepalive_interval_s=5)
    assert last + 5 - 5 / 4 <= request.heard[0] <= last + 5


@pytest.mark.parametrize("every", [5, 7])
def test_an_occasional_untimed_token_suppresses_keepalives(every: int) -> None:
    """A silence that is nearly as long as the interval may get a keep-alive a little early."""
    rare = [(float(at), passed) for at in range(7, 200, every)]
    request = run((1, asked), (2, event), *rare, until=200, idle_s=8, keepalive_interval_s=8)
    assert request.expired == []
    assert every == 7 or request.heard == []


def test_a_waiting_request_does_not_keep_the_timer_busy() -> None:
    looked = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def times() -> StreamTimes:
            looked.append(loop.time())
            return StreamTimes(began_at=0.0)

        deadlines = Deadlines(
            loop,
            replace(LIMITS, keepalive_interval_s=10),
            times,
            on_keepalive=lambda: None,
            on_expired=lambda _: None,
        )
        await asyncio.sleep(95)
        deadlines.close()

    run_virtual(main())
    assert looked == [10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_the_first_event_may_come_at_the_time_of_a_keepalive() -> None:
    """On uvloop, which `serve` uses: its handle of a very near time does not know that time."""
    near = replace(LIMITS, keepalive_interval_s=0.0002)
    heard = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        times = StreamTimes(began_at=loop.time())
        deadlines = Deadlines(
            loop, near, lambda: times, on_keepalive=lambda: heard.append(1), on_expired=print
        )
        deadlines.begin()
        await asyncio.sleep(0.01)
        deadlines.close()

    uvloop.run(main())
    assert heard
