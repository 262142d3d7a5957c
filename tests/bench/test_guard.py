"""Our own work per forwarded token, counted: the same counts on any machine."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bench.guard import BASELINE, EVENTS, TokenWork, count


@pytest.mark.slow
def test_the_work_per_token_has_not_grown_by_half() -> None:
    work, pieces = asyncio.run(count())
    assert pieces == EVENTS, "each left on its own"
    assert not work.exceeds(BASELINE), f"{work}; recorded: {BASELINE}"


def test_the_count_is_the_same_every_time_and_leaves_no_hook_behind() -> None:
    """But for a finaliser that the garbage collector may run in between."""
    hooks = sys.gettrace(), sys.getprofile()
    (first, _), (second, _) = (asyncio.run(count(2_000)) for _ in range(2))
    assert first.instructions == pytest.approx(second.instructions, rel=0.01)
    assert first.calls == pytest.approx(second.calls, rel=0.01)
    assert hooks == (sys.gettrace(), sys.getprofile())


def test_half_more_of_either_kind_is_too_much() -> None:
    baseline = TokenWork(instructions=100, calls=10)
    assert not TokenWork(instructions=150, calls=15).exceeds(baseline)
    assert TokenWork(instructions=151, calls=10).exceeds(baseline)
    assert TokenWork(instructions=100, calls=15.1).exceeds(baseline)
