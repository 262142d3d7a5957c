"""Percentiles, medians and ranges as pure functions. No value is interpolated between measured values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "percentile", "ratios", "summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The values of one figure in several rounds."""

    median: float
    least: float
    most: float

    def scaled(self, factor: float) -> Summary:
        return Summary(self.median * factor, self.least * factor, self.most * factor)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest measured value that `percent` of all values do not exceed (nearest rank)."""
    if not values:
        return math.nan
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def summary(values: Sequence[float]) -> Summary | None:
    """Return median and range of the measured values, or None if nothing was measured."""
    measured = [value for value in values if not math.isnan(value)]
    if not measured:
        return None
    return Summary(statistics.median(measured), min(measured), max(measured))


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Compare two gateways round by round: only values of the same round are compared."""
    pairs = zip(values, others, strict=False)
    return [value / other for value, other in pairs if other and not math.isnan(value + other)]
