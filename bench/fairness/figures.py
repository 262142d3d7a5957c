"""All figures of a run, with the page and the picture made of them."""

from __future__ import annotations

from dataclasses import dataclass

from bench.fairness.crowds import promises
from bench.fairness.experiments import Arrival, Batch, Queue, Shares, batch, newcomers, queues, shares
from bench.fairness.page import page
from bench.fairness.picture import picture
from bench.fairness.promise import Promise

__all__ = ["Figures", "measure"]


@dataclass(frozen=True, slots=True)
class Figures:
    shares: tuple[Shares, ...]
    arrivals: tuple[Arrival, ...]
    batch: Batch
    queues: tuple[Queue, ...]
    promises: tuple[Promise, ...]

    @property
    def page(self) -> str:
        return page(self.shares, self.arrivals, self.batch, self.queues, self.promises)

    @property
    def picture(self) -> str:
        return picture(self.shares, self.arrivals, self.batch)


def measure() -> Figures:
    return Figures(
        shares=tuple(shares(count) for count in (2, 3, 4, 5)),
        arrivals=tuple(newcomers(slots) for slots in (1, 2, 4, 8)),
        batch=batch(),
        queues=tuple(queues()),
        promises=promises(),
    )
