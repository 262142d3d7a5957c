"""`within` returns a ready result at once, and waits for others until the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slotgate.gateway.http.eager import within
from tests.support.virtual_time import run_virtual


async def there() -> str:
    return "there"


async def after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    await asyncio.sleep(seconds)
    return "late"


async def fails(seconds: float) -> str:
    if seconds:
        await asyncio.sleep(seconds)
    raise LookupError


def waited(make: Callable[[], Awaitable[str]], deadline: float = 10.0) -> str:
    async def main() -> str:
        return await within(make(), deadline)

    return run_virtual(main())


def test_a_ready_result_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "timeout_at", None)
    assert waited(there) == "there"


def test_a_result_before_the_deadline_is_returned() -> None:
    assert waited(lambda: after(4)) == "late"


def test_work_is_cancelled_at_the_deadline() -> None:
    ended: list[str] = []

    async def slow() -> str:
        try:
            return await after(6)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        waited(slow)
    assert ended == ["cancelled"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_an_error_reaches_the_caller(seconds: float) -> None:
    with pytest.raises(LookupError):
        waited(lambda: fails(seconds))


def test_a_future_can_be_awaited() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        done, later = loop.create_future(), loop.create_future()
        done.set_result("done")
        loop.call_later(1, later.set_result, "later")
        return [await within(done, 10), await within(later, 10)]

    assert run_virtual(main()) == ["done", "later"]


def test_a_cancellation_from_outside_reaches_the_work() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(within(after(5), 100))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(main())


def test_a_cancellation_reaches_a_task_that_only_yields() -> None:
    ended: list[str] = []

    async def spins() -> str:
        try:
            while True:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.ensure_future(within(spins(), 100))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(main())
    assert ended == ["cancelled"]
