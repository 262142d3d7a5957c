"""The measured values: one per round for every gateway and figure, compared round by round."""

from __future__ import annotations

import math
from collections.abc import Callable

from bench.figures import Summary, ratios, summary

__all__ = ["DIRECT", "REFERENCE", "Samples"]

DIRECT = "direct"
REFERENCE = "nginx"


class Samples:
    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.failures: dict[str, str] = {}
        """Gateway or figure -> the reason why it is missing."""

    def __repr__(self) -> str:
        return f"<Samples of {', '.join(self.values)}>"

    def add(self, peer: str, figure: str, value: float) -> None:
        self.values.setdefault(peer, {}).setdefault(figure, []).append(value)

    def fail(self, peer: str, reason: str) -> None:
        self.failures.setdefault(peer, reason)

    def of(self, peer: str, figure: str) -> list[float]:
        return self.values.get(peer, {}).get(figure, [])

    # -- as the report shows them

    def plain(self, peer: str, figure: str) -> Summary | None:
        return summary(self.of(peer, figure))

    def ratio(self, peer: str, figure: str, to: str) -> Summary | None:
        return summary(ratios(self.of(peer, figure), self.of(to, figure)))

    def ratio_beside(self, peer: str, figure: str, beside: str) -> Summary | None:
        """The ratio to another figure of the same gateway in the same turn."""
        return summary(ratios(self.of(peer, figure), self.of(peer, beside)))

    def added(self, peer: str, figure: str) -> Summary | None:
        """The difference to `direct`, round by round; for `direct` itself the whole value."""
        if peer == DIRECT:
            return self.plain(peer, figure)
        return summary(
            _by_round(lambda own, direct: own - direct, self.of(peer, figure), self.of(DIRECT, figure))
        )


def _by_round(
    combine: Callable[[float, float], float], values: list[float], others: list[float]
) -> list[float]:
    pairs = zip(values, others, strict=False)
    return [combine(value, other) for value, other in pairs if not math.isnan(value + other)]
