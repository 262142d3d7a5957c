"""Run an awaitable as far as it gets without waiting, and await the rest later.

If nothing has to be waited for, this saves a timer and a switch between tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

__all__ = ["Continued", "within"]

T = TypeVar("T")
Steps = Generator[Any, Any, T] | Coroutine[Any, Any, T]


class Continued(Generic[T]):
    """An awaitable that has been run until it first waited. Awaiting this object runs the rest."""

    __slots__ = ("_steps", "_waiting_for")

    def __init__(self, steps: Steps[T], waiting_for: Any) -> None:  # noqa: ANN401
        self._steps = steps
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, T]:
        waiting_for = self._waiting_for
        while True:
            error: BaseException | None = None
            value = None
            try:
                value = yield waiting_for
            except BaseException as thrown:
                error = thrown
            try:
                waiting_for = self._steps.throw(error) if error is not None else self._steps.send(value)
            except StopIteration as returned:
                return cast("T", returned.value)


async def within(awaitable: Awaitable[T], deadline: float) -> T:
    """Await until `deadline`, in seconds of the event loop's clock. Raises `TimeoutError` after it."""
    steps = awaitable.__await__()
    try:
        waiting_for = next(steps)
    except StopIteration as returned:
        return cast("T", returned.value)
    async with asyncio.timeout_at(deadline):
        return await Continued(steps, waiting_for)
