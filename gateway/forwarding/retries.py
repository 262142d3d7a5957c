"""Decides if a request is tried once more after its backend failed it. docs/retries.md lists every case.

* The backend has not begun the work: it could not be reached, or it loads its model. The request is tried
  again, whatever it is, because it has done nothing yet.
* The backend was lost under the request, and no part of the answer has come. Then it is asked for its health.
  If it has died, the request is tried again, unless it may be what killed the backend
  (`backends/crash_memory.py`). The setting `admission.retry` can turn this off.

A request is tried again once. It waits in the queue for its second backend, at its old place in the order of
arrival, or for the first one if that comes back. Its tenant does not pay for the lost attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import structlog

from slotgate.admission import Lease
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.crash_memory import CrashMemory, Loss
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.backends.state import BackendState
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.http.errors import GatewayError

__all__ = ["Retries", "RetryCounts", "RetryPolicy"]

SETTLE_S = 0.05
"""Seconds in which all requests that a dead backend lost are known to be lost."""
RetryPolicy = Literal["before-first-byte", "off"]
log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryCounts:
    """Counts by backend and reason."""

    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that were tried again: `unreachable`, `loading` or `died`."""
    withheld: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that died with their backend and were not tried again: `alone`, `suspect`, `no_backend` or
    `off`."""


class Retries:
    """Belongs to the running event loop."""

    def __init__(self, fleet: Fleet, policy: RetryPolicy) -> None:
        self.policy: RetryPolicy = policy
        self.counts = RetryCounts()
        self._fleet = fleet
        self._memory = CrashMemory()
        fleet.on_closed.append(self._memory.forget_pool)

    def __repr__(self) -> str:
        made, withheld = self.counts.made.total(), self.counts.withheld.total()
        return f"<Retries {self.policy}, {made} made, {withheld} withheld>"

    async def allowed(
        self, error: GatewayError, lease: Lease, request: PreparedRequest, *, is_last: bool
    ) -> bool:
        """Return True if the request may be tried again after this error of its released lease."""
        if error.context_exceeded:
            self._fleet.context_exceeded(lease.pool_name)
        if error.retry_safe:
            loading = self._fleet.refused(lease.pool_name, error, loading=error.status == 503)
            return not (is_last or lease.delivered) and self._after_refusal(lease, request, loading=loading)
        if not (error.lost and self._fleet.has_pool(lease.pool_name)):
            return False
        loss = self._memory.lost(lease.pool_name, granted_at=lease.granted_at, now=_now())
        if lease.delivered or not await self._fleet.has_died(lease.pool_name):
            return False
        lease.forgive()
        if self._is_alone(loss, lease):
            await asyncio.sleep(SETTLE_S)
        suspect = self._memory.suspect(request.fingerprint(), loss, _now())
        return not is_last and self._after_death(loss, lease, request, suspect=suspect)

    def may_send_again(self, request: PreparedRequest) -> bool:
        """Return True if a request whose kept connection was closed at the send may go out on a new one.

        The backend closed the connection either before it read the request or because of it. So the request
        is a suspect from now on, and a suspect is not sent again.
        """
        return not self._memory.suspect(request.fingerprint(), None, _now())

    def _after_refusal(self, lease: Lease, request: PreparedRequest, *, loading: bool) -> bool:
        """The backend has not begun. Wait for one that loads, or leave for one that is there."""
        if not loading and not any(other.state is BackendState.READY for other in self._backends(request)):
            return False
        self._count("loading" if loading else "unreachable", lease, request)
        return True

    def _after_death(self, loss: Loss, lease: Lease, request: PreparedRequest, *, suspect: bool) -> bool:
        reason = self._objection(loss, lease, request, suspect=suspect)
        if reason:
            backend = self._fleet.name_of(lease.pool_name)
            self.counts.withheld[backend, reason] += 1
            log.warning(
                "request died with its backend", id=request.context.id, backend=backend, reason=reason
            )
            return False
        self._count("died", lease, request)
        return True

    def _objection(self, loss: Loss, lease: Lease, request: PreparedRequest, *, suspect: bool) -> str:
        """Return the reason not to try again a request whose backend died, or an empty string."""
        if self.policy == "off":
            return "off"
        if suspect:
            return "suspect"
        if self._is_alone(loss, lease):
            return "alone"
        now = _now()
        waits_for_none = all(backend.is_unavailable(now) for backend in self._backends(request))
        return "no_backend" if waits_for_none else ""

    def _is_alone(self, loss: Loss, lease: Lease) -> bool:
        return loss.requests == 1 and not self._fleet.had_company(lease, loss.at)

    def _backends(self, request: PreparedRequest) -> list[Backend]:
        model = self._fleet.catalogue.models.get(request.demand.model)
        return model.backends if model is not None else []

    def _count(self, reason: str, lease: Lease, request: PreparedRequest) -> None:
        backend = self._fleet.name_of(lease.pool_name)
        self.counts.made[backend, reason] += 1
        log.info("request is tried again", id=request.context.id, backend=backend, reason=reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
