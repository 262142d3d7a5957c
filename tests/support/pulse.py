"""Waiting for something to become true, without sleeping and never for ever.

Whoever changes state calls `beat()`; whoever waits re-checks then. A wait that is not met in time
is an `AssertionError` that says what was expected and what was there instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """One condition variable for single-threaded code: no lock, any number of waiters."""

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
        """Return once `condition()` is true. `what` is shown (as it is at that time) if it never is."""
        try:
            async with asyncio.timeout(within):
                while not condition():
                    await self.next()
        except TimeoutError as error:
            raise AssertionError(f"not within {within} s: {what}") from error
