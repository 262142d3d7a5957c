"""The clock by which the waits of a model's queue are counted: it stands still while the model loads.

Until a moment that is known beforehand, so that no wait is for ever. All waits of a queue stand still
together: whoever came first is also due first.

This module never awaits and reads no clock.
"""

from __future__ import annotations

__all__ = ["WaitingClock"]


class WaitingClock:
    __slots__ = ("_since", "_stood_s", "_until")

    def __init__(self) -> None:
        self._stood_s = 0.0
        self._since: float | None = None
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<WaitingClock {'runs' if self._since is None else f'stands until {self._until:g}'}>"

    def stand_still(self, now: float, until: float | None) -> None:
        """From now until then at the latest; None: it runs again."""
        if self._since is not None:
            if until == self._until:
                return
            self._stood_s += min(now, self._until) - self._since
        self._since = now if until is not None and until > now else None
        self._until = until or 0.0

    def time(self, now: float) -> float:
        standing = 0.0 if self._since is None else min(now, self._until) - self._since
        return now - self._stood_s - standing

    def when(self, time: float) -> float:
        """The real time at which this clock shows `time`, as far as is known now."""
        still = 0.0 if self._since is None else self._until - self._since
        return time + self._stood_s + still
