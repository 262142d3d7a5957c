"""A flood of lines of one kind becomes a limited number of lines and a count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from slotgate.gateway.telemetry.log_limiter import MOST, PERIOD_S, LogLimiter
from tests.support.logged import Log, logged
from tests.support.virtual_time import run_virtual

TOLD = "requests without a line of their own"


def left_out(log: Log) -> list[dict[str, int]]:
    return [entry["left_out"] for entry in log.of(TOLD)]


def during(run: Callable[[LogLimiter], Coroutine[Any, Any, None]]) -> list[dict[str, int]]:
    """The counts of left-out lines that were logged during the run."""

    async def main() -> None:
        await run(LogLimiter())

    with logged() as log:
        run_virtual(main())
    return left_out(log)


def test_lines_left_out_are_counted_by_kind_at_the_end_of_the_period() -> None:
    async def run(budget: LogLimiter) -> None:
        written = sum(budget.allows("client_gone") for _ in range(MOST + 900))
        assert (written, budget.allows("queue_full")) == (MOST, True)
        await asyncio.sleep(PERIOD_S + 0.1)

    assert during(run) == [{"client_gone": 900}]


def test_a_new_period_allows_lines_again() -> None:
    async def run(budget: LogLimiter) -> None:
        for _ in range(3):
            assert sum(budget.allows("client_gone") for _ in range(MOST + 1)) == MOST
            await asyncio.sleep(PERIOD_S + 0.1)

    assert during(run) == [{"client_gone": 1}] * 3


def test_without_a_flood_no_count_is_logged() -> None:
    async def run(budget: LogLimiter) -> None:
        assert all(budget.allows("client_gone") for _ in range(MOST))
        await asyncio.sleep(3 * PERIOD_S)

    assert during(run) == []


def test_the_end_of_the_process_logs_the_remaining_count() -> None:
    async def run(budget: LogLimiter) -> None:
        for _ in range(MOST + 7):
            budget.allows("client_gone")
        budget.flush()
        budget.flush()

    assert during(run) == [{"client_gone": 7}]


def test_the_number_of_kinds_is_bounded() -> None:
    async def run(budget: LogLimiter) -> None:
        for number in range(1000):
            budget.allows(f"code-{number}")
        budget.flush()

    assert during(run) == [{"others": 1000 - 64 - MOST}]
