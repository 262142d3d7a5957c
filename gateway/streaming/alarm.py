"""A timer of an event loop that can be moved, and that knows the time it is set for.

The handle that a loop returns is not asked for that time. If it is less than half a millisecond away, uvloop
turns a `call_later` into a `call_soon`, and the handle has no time.

An alarm that is late by more than `LATE_S` waits for another `READ_S`. It is late because the event loop
stood still (a long callback, or a process that was stopped), so the sockets must be read first: the missing
bytes may have arrived. Without the wait, the alarm would ring before the loop looks at its sockets. The
limits of streams use alarms. The limits of whole answers use `asyncio.timeout`, which does not wait in this
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LATE_S", "READ_S", "Alarm"]

LATE_S = 0.005
READ_S = 0.001
"""Long enough for the loop to read its sockets once. uvloop would run a shorter timer before that."""


class Alarm:
    """Calls `ring` once, at the time that it is set for. After `close()` it cannot be set any more."""

    __slots__ = ("_handle", "_loop", "_ring", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring: Callable[[], None] | None = ring
        """The function to call; None once closed, so that the alarm and its owner do not keep each other."""
        self._handle: asyncio.Handle | None = None
        self.at: float | None = None
        """The time on the loop's clock; None if it is not set or has rung."""

    def __repr__(self) -> str:
        state = "closed" if self._ring is None else "unset" if self.at is None else f"at {self.at}"
        return f"<Alarm {state}>"

    def set(self, at: float) -> None:
        """Ring at this time, and not at the time it was set for before."""
        self._unset()
        if self._ring is not None:
            self.at = at
            self._handle = self._loop.call_at(at, self._fire)

    def set_no_later(self, at: float) -> None:
        """Ring at this time, unless it is set for an earlier one."""
        if self.at is None or self.at > at:
            self.set(at)

    def close(self) -> None:
        self._ring = None
        self._unset()

    def _unset(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self.at = None

    def _fire(self) -> None:
        if self.at is not None and self._loop.time() - self.at > LATE_S:
            self._handle = self._loop.call_later(READ_S, self._ring_now)
        else:
            self._ring_now()

    def _ring_now(self) -> None:
        self._handle = self.at = None
        if self._ring is not None:
            self._ring()
