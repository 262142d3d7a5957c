"""The figures of a benchmark: counts, rates and percentiles. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.tools.bench.request import BenchRequest

__all__ = ["BenchFigures", "Percentiles"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of some values, in milliseconds."""

    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values_ms: Iterable[float]) -> Percentiles | None:
        """Return the percentiles, or None without values."""
        ranked = sorted(values_ms)
        if not ranked:
            return None
        p50, p95, p99 = (_percentile(ranked, share) for share in (0.50, 0.95, 0.99))
        return cls(p50, p95, p99, ranked[-1])


@dataclass(frozen=True, slots=True)
class BenchFigures:
    """The figures of all requests of a run."""

    seconds: float
    """Time from the first request to the end of the last answer."""
    requests: int
    ok: int
    failures: dict[str, int]
    """Error code -> number of failures, the most frequent first."""
    tokens: int
    """Tokens of all answers, including failed ones."""
    queue: Percentiles | None
    first_token: Percentiles | None
    between_tokens: Percentiles | None
    total: Percentiles | None
    tokens_per_s_each: float | None
    """The median rate of a stream, counted from its first token."""

    @classmethod
    def of(cls, requests: Sequence[BenchRequest], seconds: float) -> BenchFigures:
        ok = [request for request in requests if request.ok]
        failures = Counter(request.failure or "not over" for request in requests if not request.ok)
        rates = [1 / pause for request in ok if (pause := _mean(request.gaps))]
        return cls(
            seconds=seconds,
            requests=len(requests),
            ok=len(ok),
            failures=dict(failures.most_common()),
            tokens=sum(request.tokens for request in requests),
            queue=Percentiles.of(request.queue_ms for request in ok if request.queue_ms is not None),
            first_token=Percentiles.of(
                request.first_text_s * 1e3 for request in ok if request.first_text_s is not None
            ),
            between_tokens=Percentiles.of(gap * 1e3 for request in ok for gap in request.gaps),
            total=Percentiles.of(request.total_s * 1e3 for request in ok),
            tokens_per_s_each=_percentile(sorted(rates), 0.5) if rates else None,
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for programs. Times are in milliseconds, except `seconds`."""
        spreads = {name: getattr(self, name) for name in _ROWS}
        return {
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            "ok": self.ok,
            "failures": self.failures,
            "tokens": self.tokens,
            "tokens_per_s": round(self.tokens_per_s, 1),
            "tokens_per_s_each": _rounded(self.tokens_per_s_each),
        } | {
            f"{name}_ms": spread and {key: _rounded(getattr(spread, key)) for key in Percentiles.__slots__}
            for name, spread in spreads.items()
        }

    def as_text(self) -> str:
        """Return the figures as a table for people."""
        answers = f"{self.ok} of {self.requests} answers in {self.seconds:.1f} s"
        rates = f"{self.tokens:,} tokens: {self.tokens_per_s:,.0f} tokens/s in all"
        if self.tokens_per_s_each is not None:
            rates += f", {self.tokens_per_s_each:,.0f} for one stream (median)"
        lines = [f"{answers}, {rates}"]
        rows = [(title, getattr(self, name)) for name, title in _ROWS.items()]
        shown = [(title, spread) for title, spread in rows if spread is not None]
        if shown:
            lines += ["", f"{'milliseconds':<16}{'p50':>10}{'p95':>10}{'p99':>10}{'most':>10}"]
        for title, spread in shown:
            values = (spread.p50, spread.p95, spread.p99, spread.most)
            lines.append(f"{title:<16}" + "".join(f"{value:>10,.1f}" for value in values))
        if self.failures:
            lines += ["", *(f"failed: {count} × {code}" for code, count in self.failures.items())]
        return "\n".join(lines) + "\n"


_ROWS = {
    "queue": "queued",
    "first_token": "first token",
    "between_tokens": "between tokens",
    "total": "whole answer",
}


def _percentile(ranked: Sequence[float], share: float) -> float:
    """Return the percentile by the nearest-rank method. `ranked` is sorted and not empty."""
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
