"""Tokens a second and time to the first of them, over the last ten minutes: a ring of short spans.

Streams count their tokens anyway. Somebody looks at these counts a few times a minute, and at each stream's
end, and what has been added since goes into the span that is now. Nothing is done per token.
This module never awaits and reads no clock: the times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from slotgate.gateway.forwarding.in_flight import Cancellable

__all__ = ["SPANS", "SPAN_S", "Rates"]

SPAN_S: Final = 5.0
SPANS: Final = 120
_BEFORE_S: Final = 0.05
_MOST_FIRSTS: Final = 64
"""Times to the first token of one span that its median is made of."""


@dataclass(slots=True)
class Span:
    number: int
    tokens: int = 0
    firsts_s: list[float] = field(default_factory=list)
    slowest_s: float = 0.0

    def add_first(self, seconds: float) -> None:
        self.slowest_s = max(self.slowest_s, seconds)
        if len(self.firsts_s) < _MOST_FIRSTS:
            self.firsts_s.append(seconds)

    def shown(self, seconds: float) -> dict[str, Any]:
        """After so many seconds of it."""
        first = round(median(self.firsts_s) * 1000, 1) if self.firsts_s else None
        slowest = round(self.slowest_s * 1000, 1) if self.firsts_s else None
        rate = round(self.tokens / max(seconds, 1.0), 1)
        return {"n": self.number, "tokens_per_s": rate, "ttft_ms": first, "ttft_max_ms": slowest}


@dataclass(slots=True)
class Seen:
    """How much of an answer has been counted."""

    tokens: int = 0
    first: bool = False


class Rates:
    def __init__(self, now: float) -> None:
        self._spans: deque[Span] = deque([Span(_number(now))], maxlen=SPANS)
        self._seen: dict[Cancellable, Seen] = {}

    def __repr__(self) -> str:
        return f"<Rates {self._spans[-1]!r}, {len(self._seen)} answers>"

    def look(self, answers: Iterable[tuple[Cancellable, float]], now: float) -> None:
        """Count what has been added to the answers under way; each with when its request began."""
        span = self._now(now)
        for answer, began_at in answers:
            self._count(span, answer, began_at)

    def ended(self, answer: Cancellable, began_at: float, now: float) -> None:
        """Count the rest of an answer that is over."""
        self._count(self._now(now), answer, began_at)
        self._seen.pop(answer, None)

    def next_look_in_s(self, now: float) -> float:
        """Until just before a span is over: so what is counted then belongs into it."""
        left_s = SPAN_S - now % SPAN_S - _BEFORE_S
        return left_s if left_s > _BEFORE_S else left_s + SPAN_S

    def tokens_per_s(self, now: float) -> float:
        """Over the last `SPAN_S` seconds, near enough: the rest of them is taken from the span before."""
        span = self._now(now)
        before = self._spans[-2].tokens if len(self._spans) > 1 else 0
        return round((span.tokens + before * (1 - now % SPAN_S / SPAN_S)) / SPAN_S, 1)

    def since(self, number: int, now: float) -> list[dict[str, Any]]:
        """The spans from this one on, the oldest first; the last one is not over yet."""
        self._now(now)
        *over, current = [span for span in self._spans if span.number >= number] or [self._spans[-1]]
        return [*(span.shown(SPAN_S) for span in over), current.shown(now % SPAN_S)]

    def _count(self, span: Span, answer: Cancellable, began_at: float) -> None:
        progress = answer.progress()
        seen = self._seen.setdefault(answer, Seen())
        span.tokens += max(0, progress.tokens - seen.tokens)
        seen.tokens = max(seen.tokens, progress.tokens)
        if progress.first_output_at is not None and not seen.first:
            seen.first = True
            span.add_first(progress.first_output_at - began_at)

    def _now(self, now: float) -> Span:
        """The span that is now; those without anything in them are there as well."""
        number = _number(now)
        last = self._spans[-1].number
        for missing in range(max(last + 1, number - SPANS + 1), number + 1):
            self._spans.append(Span(missing))
        return self._spans[-1]


def _number(now: float) -> int:
    return int(now // SPAN_S)
