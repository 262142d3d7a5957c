"""A timer of an event loop that can be moved, and knows the moment it is set for.

The handle that a loop returns is not asked for it. For a moment that is less than half a millisecond away
uvloop makes a `call_soon` of a `call_later`, and its handle cannot say; only the standard library's always
can.

An alarm that is late by more than `LATE_S` rings `READ_S` later still: the loop stood still (a long callback,
a process that was stopped), and what has come in the meantime is read first. It may be just what was missed.
uvloop would ring before it looks at its sockets again, and so does any loop behind a stop. Limits of streams
go by alarms; `asyncio.timeout`, by which those of whole answers go, knows nothing of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LATE_S", "READ_S", "Alarm"]

LATE_S = 0.005
READ_S = 0.001
"""Behind one look at the sockets at least; anything less is no timer for uvloop, and comes before it."""


class Alarm:
    """Calls `ring` once at the moment it is set for. After `close()` it cannot be set any more."""

    __slots__ = ("_closed", "_handle", "_loop", "_ring", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.Handle | None = None
        self._closed = False
        self.at: float | None = None
        """On the loop's clock; None: not set, or it has rung."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "unset" if self.at is None else f"at {self.at}"
        return f"<Alarm {state}>"

    def set(self, at: float) -> None:
        """For this moment, whatever it was set for."""
        self._unset()
        if not self._closed:
            self.at = at
            self._handle = self._loop.call_at(at, self._fire)

    def set_no_later(self, at: float) -> None:
        """As `set`, unless it rings before that anyway."""
        if self.at is None or self.at > at:
            self.set(at)

    def close(self) -> None:
        self._closed = True
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
        self._ring()
