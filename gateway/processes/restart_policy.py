"""Decides when a llama-server that died may be started again, and when to stop trying.

Two rules, because one of them alone is wrong:

* A *rate*: the pause doubles with every start of the last `window_s`, whatever the starts led to, up to
  `window_s / max_starts`. So a server that loads, serves and crashes again and again is slowed down to
  `max_starts` in `window_s`, not lost, and no single death costs more than that pause.
* A *count*: after `max_starts` starts in a row that never became ready, it is given up. A process that is
  loaded on request is given up after one start that failed for a lasting reason (`failure.py`): while it is
  tried, other models wait for its place.

Between starts that fail the pause doubles from `first_delay_s` to `max_delay_s`; becoming ready resets it.
A process that was given up rests for `REST_S` before requests may load it again, and twice as long each time,
up to `MAX_REST_S`, until it has been ready once.

This module never awaits; the time is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_REST_S", "REST_S", "RestartLimits", "RestartPolicy"]

REST_S: Final = 60.0
"""Seconds after which a process that was given up may be started again for a request, the first time."""
MAX_REST_S: Final = 3600.0


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
        self._given_up = 0
        """The number of times that it was given up since it was ready last."""

    def __repr__(self) -> str:
        return f"<RestartPolicy {self._failures}/{self._limits.max_starts} failures in a row>"

    @property
    def failures(self) -> int:
        """Starts in a row that have not become ready; one that is still loading counts."""
        return self._failures

    @property
    def rest_s(self) -> float:
        """Seconds for which requests do not load it after it was given up."""
        return min(REST_S * 2.0 ** min(max(0, self._given_up - 1), 32), MAX_REST_S)

    @property
    def has_failed(self) -> bool:
        """Return True if it was given up and has not been ready since."""
        return self._given_up > 0

    @property
    def is_exhausted(self) -> bool:
        """Return True if the process is given up."""
        return self._failures >= self._limits.max_starts

    def started(self, now: float) -> None:
        self._starts.append(now)
        self._failures += 1

    def became_ready(self) -> None:
        self._failures = self._given_up = 0

    def given_up(self) -> None:
        self._given_up += 1

    def forgive(self) -> None:
        """Begin the count anew, because another try was asked for. The limit on the rate stays."""
        self._failures = 0

    def delay_s(self, now: float) -> float:
        """Return seconds from `now` to the next start."""
        return max(self._backoff_s(), self._rate_s(now))

    def _backoff_s(self) -> float:
        doublings = min(max(0, self._failures - 1), 32)
        return min(self._limits.first_delay_s * 2.0**doublings, self._limits.max_delay_s)

    def _rate_s(self, now: float) -> float:
        """Return seconds by the number of starts in the window that ends now."""
        limits = self._limits
        recent = sum(now - start < limits.window_s for start in self._starts)
        doublings = min(max(0, recent - 1), 32)
        return min(limits.first_delay_s * 2.0**doublings, limits.window_s / limits.max_starts)
