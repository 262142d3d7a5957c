"""Percentiles, medians and ranges. Pure functions; no value is invented between two measured ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "percentile", "ratios", "summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over several rounds."""

    median: float
    least: float
    most: float

    def scaled(self, factor: float) -> Summary:
        return Summary(self.median * factor, self.least * factor, self.most * factor)


def percentile(values: Sequence[float], percent: float) -> float:
    """The least measured value that `percent` of all values do not exceed (nearest rank)."""
    if not values:
        return math.nan
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def summary(values: Sequence[float]) -> Summary | None:
    """None where nothing was measured."""
    measured = [value for value in values if not math.isnan(value)]
    if not measured:
        return None
    return Summary(statistics.median(measured), min(measured), max(measured))


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round: what two gateways did in the same round is compared, and nothing else."""
    pairs = zip(values, others, strict=False)
    return [value / other for value, other in pairs if other and not math.isnan(value + other)]
