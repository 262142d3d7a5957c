"""The virtual clock jumps, keeps the order of timers, and reports a loop that is blocked for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest

from tests.support.blocking import BlockedLoopError
from tests.support.virtual_time import BlockedForeverError, run_virtual


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.perf_counter()
    assert run_virtual(main()) == pytest.approx(3600)
    assert time.perf_counter() - began < 1


def test_timers_fire_in_their_order() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def note(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append(name)

        await asyncio.gather(note("c", 60), note("a", 0.001), note("b", 59.9))
        return seen

    assert run_virtual(main()) == ["a", "b", "c"]


def test_a_timeout_ends_a_wait_that_would_never_end() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120):
                await asyncio.Event().wait()
        with anyio.move_on_after(30):
            await anyio.Event().wait()
        return anyio.current_time()

    assert run_virtual(main()) == pytest.approx(150)


def test_a_blocked_loop_fails_at_once_and_names_the_place() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_nobody(), name="waiter")

    with pytest.raises(BlockedForeverError, match=r"waiter at .*test_virtual_time\.py"):
        run_virtual(main())


def test_exceptions_of_the_coroutine_are_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError

    with pytest.raises(LookupError):
        run_virtual(main())


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("block", [time.sleep, spin])
def test_a_turn_that_blocks_the_loop_fails(block: Callable[[float], None]) -> None:
    async def main() -> None:
        block(0.06)
        await asyncio.sleep(0)

    with pytest.raises(BlockedLoopError):
        run_virtual(main(), blocking_limit_s=0.05)
