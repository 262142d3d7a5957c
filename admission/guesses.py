"""Guesses how long a request will hold a slot, learnt from leases that have ended.

A guess is the running mean of what the same tenant took at the same endpoint of the same model; where that is
unknown, the mean of the model; else `UNKNOWN_S`. `max_tokens` is no part of it: agents ask for 32,000 tokens
and take 200. A guess decides only about the moment until the clock knows better, see `slot_time`.

This module is pure.
"""

from __future__ import annotations

from collections import OrderedDict

from slotgate.admission.demand import Demand

__all__ = ["UNKNOWN_S", "Guesses"]

UNKNOWN_S = 2.0
_WINDOW = 16
"""Each new lease moves a mean by one part in so many, once so many are known."""
_REMEMBERED = 4096
"""Means that are kept; the one that was used longest ago goes first."""


class Guesses:
    """Running means of seconds per slot."""

    __slots__ = ("_means",)

    def __init__(self) -> None:
        self._means: OrderedDict[object, tuple[float, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Guesses of {len(self._means)} kinds>"

    def of(self, demand: Demand) -> float:
        """Return the seconds for which this demand will probably hold each of its slots."""
        mean = self._means.get((demand.tenant, demand.endpoint, demand.model))
        if mean is None:
            mean = self._means.get(demand.model)
        return UNKNOWN_S if mean is None else mean[0]

    def of_model(self, model: str) -> float | None:
        """Return the mean of a model; None if no lease of it has ended yet."""
        mean = self._means.get(model)
        return None if mean is None else mean[0]

    def learn(self, demand: Demand, seconds: float) -> None:
        """A lease for this demand has held each of its slots for so long."""
        for key in ((demand.tenant, demand.endpoint, demand.model), demand.model):
            mean, count = self._means.get(key, (0.0, 0))
            count = min(count + 1, _WINDOW)
            self._means[key] = (mean + (seconds - mean) / count, count)
            self._means.move_to_end(key)
        while len(self._means) > _REMEMBERED:
            self._means.popitem(last=False)
