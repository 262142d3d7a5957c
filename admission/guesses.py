"""Guesses how long a request will hold a slot, learnt from leases that have ended.

A guess is the running mean of earlier requests of the same tenant, endpoint and model. If there were none, it
is the mean of the model, or else `UNKNOWN_S`. `max_tokens` does not count, because agents ask for 32,000
tokens and take 200. A guess matters only until the time that has really passed replaces it (see `slot_time`).
If a model has several pools, each pool has means of its own, too. They decide which free pool is quickest.

This module is pure.
"""

from __future__ import annotations

from collections import OrderedDict

from slotgate.admission.demand import Demand

__all__ = ["UNKNOWN_S", "Guesses"]

UNKNOWN_S = 2.0
_WINDOW = 16
"""Once a mean has this many leases, each new one moves it by one part in this number."""
_REMEMBERED = 8192
"""The number of means that are kept. The mean that was updated longest ago is dropped first."""


class Guesses:
    """Running means of seconds per slot."""

    __slots__ = ("_means",)

    def __init__(self) -> None:
        self._means: OrderedDict[object, tuple[float, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Guesses of {len(self._means)} kinds>"

    def of(self, demand: Demand) -> float:
        """Return the seconds for which this demand will probably hold each of its slots."""
        mean = self._mean(demand.tenant, demand.endpoint, demand.model)
        return UNKNOWN_S if mean is None else mean

    def at(self, demand: Demand, pool_name: str) -> float:
        """Return the same for one pool, because backends of one model can differ in speed.

        If no request of this tenant and endpoint has ended at the pool yet, the guess is scaled by the speed
        of the pool, which is known from all requests for the model.
        """
        known = self._means.get((demand.tenant, demand.endpoint, demand.model, pool_name))
        if known is not None:
            return known[0]
        there, everywhere = self._means.get((demand.model, pool_name)), self._means.get(demand.model)
        if there is None or everywhere is None or not everywhere[0]:
            return self.of(demand)
        return self.of(demand) * there[0] / everywhere[0]

    def has_seen(self, demand: Demand, pool_name: str) -> bool:
        """Return True if a request for this demand's model has ended at the pool."""
        return (demand.model, pool_name) in self._means

    def of_model(self, model: str) -> float | None:
        """Return the mean of a model; None if no lease of it has ended yet."""
        mean = self._means.get(model)
        return None if mean is None else mean[0]

    def learn(self, demand: Demand, seconds: float, pool_name: str = "") -> None:
        """Learn that a lease for this demand has held each of its slots for this time.

        `pool_name` is empty if there is only one pool, because then its speed needs no mean of its own.
        """
        tenant, endpoint, model = demand.tenant, demand.endpoint, demand.model
        self._learn((tenant, endpoint, model), seconds)
        self._learn(model, seconds)
        if pool_name:
            self._learn((tenant, endpoint, model, pool_name), seconds)
            self._learn((model, pool_name), seconds)
        while len(self._means) > _REMEMBERED:
            self._means.popitem(last=False)

    def _learn(self, key: object, seconds: float) -> None:
        mean, count = self._means.get(key, (0.0, 0))
        count = min(count + 1, _WINDOW)
        self._means[key] = (mean + (seconds - mean) / count, count)
        self._means.move_to_end(key)

    def _mean(self, tenant: str, endpoint: str, model: str) -> float | None:
        mean = self._means.get((tenant, endpoint, model)) or self._means.get(model)
        return None if mean is None else mean[0]
