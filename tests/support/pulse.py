"""Waits for conditions without sleeping, and with a limit.

Code that changes state calls `beat()`, and waiters check their condition again. A wait that reaches its limit
raises an `AssertionError` that shows the expected and the actual state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """A condition variable for single-threaded code, without a lock."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def beat(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def next(self) -> None:
        """Return at the next `beat()`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def until(self, condition: Callable[[], object], what: object, within: float | None) -> None:
        """Return once `condition()` is true. The error shows `what` as it is at the limit."""
        try:
            async with asyncio.timeout(within):
                while not condition():
                    await self.next()
        except TimeoutError as error:
            raise AssertionError(f"not within {within} s: {what}") from error
