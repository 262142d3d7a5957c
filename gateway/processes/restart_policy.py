"""Decides when a llama-server that died may be started again, and when to stop trying.

Two rules, because one of them alone is wrong:

* A *rate*: at most `max_starts` in any `window_s`, whatever the starts led to. It protects the host and is
  kept by waiting, so a server that loads, serves and crashes again and again is slowed down, not lost.
* A *count*: after `max_starts` starts in a row that never became ready, it is given up.

Between starts the pause doubles from `first_delay_s` to `max_delay_s`; becoming ready resets it.

This module never awaits; the time is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["RestartLimits", "RestartPolicy"]


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """Limits on starts. With the defaults a server that never starts is given up after 16 seconds."""

    max_starts: int = 6
    window_s: float = 60.0
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0


class RestartPolicy:
    """Counts the starts of one llama-server."""

    def __init__(self, limits: RestartLimits) -> None:
        self._limits = limits
        self._starts: deque[float] = deque(maxlen=limits.max_starts)
        self._failures = 0

    def __repr__(self) -> str:
        return f"<RestartPolicy {self._failures}/{self._limits.max_starts} failures in a row>"

    @property
    def failures(self) -> int:
        """Starts in a row that have not become ready; one that is still loading counts."""
        return self._failures

    @property
    def is_exhausted(self) -> bool:
        """Return True if the process is given up."""
        return self._failures >= self._limits.max_starts

    def started(self, now: float) -> None:
        self._starts.append(now)
        self._failures += 1

    def became_ready(self) -> None:
        self._failures = 0

    def forgive(self) -> None:
        """Begin the count anew, because another try was asked for. The limit on the rate stays."""
        self._failures = 0

    def delay_s(self, now: float) -> float:
        """Return seconds from `now` to the next start."""
        return max(self._backoff_s(), self._room_s(now))

    def _backoff_s(self) -> float:
        doublings = min(max(0, self._failures - 1), 32)
        return min(self._limits.first_delay_s * 2.0**doublings, self._limits.max_delay_s)

    def _room_s(self, now: float) -> float:
        """Return seconds until the oldest start that counts has left the window."""
        if len(self._starts) < self._limits.max_starts:
            return 0.0
        return max(0.0, self._starts[0] + self._limits.window_s - now)
