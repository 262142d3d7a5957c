"""A timer of an event loop that can be moved, and knows the moment it is set for.

The handle that a loop returns is not asked for it: for a moment that is less than half a millisecond away
uvloop returns one that cannot say (its `call_later` makes a `call_soon` of that), and the standard
library's loop does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Alarm"]


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
        return f"<Alarm {'closed' if self._closed else f'at {self.at}'}>"

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
        self._handle = self.at = None
        self._ring()
