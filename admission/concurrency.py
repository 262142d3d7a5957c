"""Counts the requests of each tenant, from the head of a request to the delivery of its answer.

A request whose body still arrives counts, and so does one whose answer is not read. Their bytes are held, and
a tenant could have any number of them otherwise. This module is pure: the clock is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from slotgate.admission.errors import Refusal, Refused

__all__ = ["Concurrency"]

_UNKNOWN_DURATION_S = 2.0
_SMOOTHING = 0.2
_SOONEST_S = 0.1


class Concurrency:
    """`max_concurrent` is tenant -> its limit. Tenants that are not in it have none, and are not counted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.max_concurrent: Mapping[str, int] = {}
        self._clock = clock
        self._inside: dict[str, dict[object, float]] = {}
        """Tenant -> its requests, in the order of arrival -> the times at which they came."""
        self._duration_s: dict[str, float] = {}
        """Tenant -> seconds that its requests usually take."""

    def __repr__(self) -> str:
        return f"<Concurrency of {len(self._inside)} tenants>"

    def inside(self, tenant: str) -> int:
        """The number of its requests in the gateway. Without a limit they are not counted."""
        return len(self._inside.get(tenant, ()))

    @contextmanager
    def entered(self, tenant: str) -> Iterator[None]:
        """Count a request for the time of the block. Raises `Refused` if the tenant has too many."""
        limit = self.max_concurrent.get(tenant)
        if limit is None:
            yield
            return
        requests = self._inside.setdefault(tenant, {})
        if len(requests) >= limit:
            detail = f"this tenant may have {limit} requests at once"
            raise Refused(Refusal.TENANT_CONCURRENCY, detail, self._retry_s(tenant, requests))
        request, came_at = object(), self._clock()
        requests[request] = came_at
        try:
            yield
        finally:
            del requests[request]
            if not requests:
                self._inside.pop(tenant, None)
            usual = self._duration_s.get(tenant, _UNKNOWN_DURATION_S)
            self._duration_s[tenant] = usual + _SMOOTHING * (self._clock() - came_at - usual)

    def _retry_s(self, tenant: str, requests: Mapping[object, float]) -> float:
        """Seconds until the oldest of the requests has probably ended."""
        oldest_at = next(iter(requests.values()), self._clock())
        usual = self._duration_s.get(tenant, _UNKNOWN_DURATION_S)
        return max(_SOONEST_S, oldest_at + usual - self._clock())
