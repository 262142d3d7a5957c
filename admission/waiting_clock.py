"""The clock that counts the waits in a model's queue. It stands still while the model loads.

It stands still until a known time at the latest, so that no wait is endless. All waits of a queue stand still
together, so the ticket that came first also times out first.

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
        """Stop the clock until this time at the latest, or let it run again if the time is None."""
        if self._since is not None:
            if until == self._until:
                return
            self._stood_s += min(now, self._until) - self._since
        self._since = now if until is not None and until > now else None
        self._until = until or 0.0

    def stands(self, now: float) -> bool:
        """Return True while waits do not count."""
        return self._since is not None and now < self._until

    def time(self, now: float) -> float:
        standing = 0.0 if self._since is None else min(now, self._until) - self._since
        return now - self._stood_s - standing

    def when(self, time: float) -> float:
        """Return the real time at which this clock will show `time`, if nothing changes before."""
        still = 0.0 if self._since is None else self._until - self._since
        return time + self._stood_s + still
