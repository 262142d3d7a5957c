"""Token buckets: limits per minute that are filled evenly. This module is pure; the times are arguments."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RateState", "TokenBucket"]

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of one limit per minute."""

    limit: int
    remaining: int
    """Requests or tokens that can be taken now. Running reservations are subtracted."""
    full_in_s: float
    """Seconds until the bucket is full again, if the running requests use nothing."""


class TokenBucket:
    """A bucket that holds the amount of one minute, is filled evenly, and may be emptied at once."""

    __slots__ = ("_at", "_level", "limit", "reserved")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.reserved = 0.0
        """The amount that running requests have taken and not settled yet."""
        self._level = float(limit)
        self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level:.0f}/{self.limit}, {self.reserved:.0f} reserved>"

    def wait_s(self, amount: float, now: float, *, settled: bool = False) -> float:
        """Return the seconds until this much can be taken; 0 if it can be taken now.

        With `settled`, the amounts that running requests have reserved count as given back.
        """
        level = self._filled(now) + (self.reserved if settled else 0.0)
        return max(0.0, (min(amount, self.limit) - level) * _MINUTE_S / self.limit)

    def take(self, amount: float, now: float) -> None:
        """Take this much. A negative amount is given back."""
        self._level = min(float(self.limit), self._filled(now) - amount)

    def resize(self, limit: int, now: float) -> None:
        """Change the limit. Counted use stays counted, but a lower limit makes no new debt."""
        before = self._filled(now)
        self._level = max(limit - (self.limit - before), min(before, 0.0))
        self.limit = limit

    def state(self, now: float) -> RateState:
        level = self._filled(now)
        used = max(0.0, self.limit - level - self.reserved)
        return RateState(self.limit, max(0, int(level)), used * _MINUTE_S / self.limit)

    def _filled(self, now: float) -> float:
        grown = (now - self._at) * self.limit / _MINUTE_S
        self._level = min(float(self.limit), self._level + grown)
        self._at = now
        return self._level
