"""Tokens per second and time to first token over the last ten minutes, in a ring of short intervals.

Every stream counts its own tokens. `Rates` reads these counts twice in a second while an operator watches,
otherwise once in an interval, and at the end of each answer. It adds the increase to the current interval, so
that nothing is done per token. This module never awaits and reads no clock: the times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from slotgate.gateway.forwarding.in_flight import Cancellable

__all__ = ["INTERVALS", "INTERVAL_S", "Rates"]

INTERVAL_S: Final = 5.0
INTERVALS: Final = 120
_BEFORE_END_S: Final = 0.05
"""Samples are taken this long before an interval ends, so that the counts belong to it."""
_MAX_FIRST_TOKENS: Final = 64
"""Number of times to first token that an interval keeps for its median."""


@dataclass(slots=True)
class RateInterval:
    """The counts of one interval."""

    number: int
    """The interval's start divided by `INTERVAL_S`."""
    tokens: int = 0
    first_tokens_s: list[float] = field(default_factory=list)
    slowest_s: float = 0.0

    def add_first_token(self, seconds: float) -> None:
        self.slowest_s = max(self.slowest_s, seconds)
        if len(self.first_tokens_s) < _MAX_FIRST_TOKENS:
            self.first_tokens_s.append(seconds)

    def point(self, elapsed_s: float) -> dict[str, Any]:
        """Return the values for the graphs when `elapsed_s` of the interval have passed."""
        first = round(median(self.first_tokens_s) * 1000, 1) if self.first_tokens_s else None
        slowest = round(self.slowest_s * 1000, 1) if self.first_tokens_s else None
        rate = round(self.tokens / max(elapsed_s, 1.0), 1)
        return {"n": self.number, "tokens_per_s": rate, "ttft_ms": first, "ttft_max_ms": slowest}


@dataclass(slots=True)
class CountedProgress:
    """The part of an answer that has been counted already."""

    tokens: int = 0
    first_token: bool = False


class Rates:
    """The intervals of the last ten minutes, and the counted part of each live answer."""

    def __init__(self, now: float) -> None:
        self._intervals: deque[RateInterval] = deque([RateInterval(_number(now))], maxlen=INTERVALS)
        self._counted: dict[Cancellable, CountedProgress] = {}

    def __repr__(self) -> str:
        return f"<Rates {self._intervals[-1]!r}, {len(self._counted)} answers>"

    def sample(self, answers: Iterable[tuple[Cancellable, float]], now: float) -> None:
        """Count what live answers have generated since the last sample.

        Each answer comes with the time at which its request began.
        """
        interval = self._current(now)
        for answer, began_at in answers:
            self._count(interval, answer, began_at)

    def ended(self, answer: Cancellable, began_at: float, now: float) -> None:
        """Count the rest of an answer that is over, and forget the answer."""
        self._count(self._current(now), answer, began_at)
        self._counted.pop(answer, None)

    def next_sample_in_s(self, now: float) -> float:
        """Return the seconds until just before the end of an interval: such a sample still belongs to it."""
        left_s = INTERVAL_S - now % INTERVAL_S - _BEFORE_END_S
        return left_s if left_s > _BEFORE_END_S else left_s + INTERVAL_S

    def tokens_per_s(self, now: float) -> float:
        """Return the approximate rate over the last `INTERVAL_S` seconds.

        The current interval covers only a part of them. The previous interval's rate stands for the rest.
        """
        interval = self._current(now)
        previous = self._intervals[-2].tokens if len(self._intervals) > 1 else 0
        return round((interval.tokens + previous * (1 - now % INTERVAL_S / INTERVAL_S)) / INTERVAL_S, 1)

    def since(self, number: int, now: float) -> list[dict[str, Any]]:
        """Return the points from interval `number` on, the oldest first. The last one is not over yet."""
        self._current(now)
        *over, current = [each for each in self._intervals if each.number >= number] or [self._intervals[-1]]
        return [*(each.point(INTERVAL_S) for each in over), current.point(now % INTERVAL_S)]

    def _count(self, interval: RateInterval, answer: Cancellable, began_at: float) -> None:
        progress = answer.progress()
        counted = self._counted.setdefault(answer, CountedProgress())
        interval.tokens += max(0, progress.tokens - counted.tokens)
        counted.tokens = max(counted.tokens, progress.tokens)
        if progress.first_output_at is not None and not counted.first_token:
            counted.first_token = True
            interval.add_first_token(progress.first_output_at - began_at)

    def _current(self, now: float) -> RateInterval:
        """Return the current interval. Adds the intervals without counts, so that the graphs have no gaps."""
        number = _number(now)
        last = self._intervals[-1].number
        for missing in range(max(last + 1, number - INTERVALS + 1), number + 1):
            self._intervals.append(RateInterval(missing))
        return self._intervals[-1]


def _number(now: float) -> int:
    return int(now // INTERVAL_S)
