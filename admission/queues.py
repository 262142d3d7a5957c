"""The two queues in which a ticket stands: one for its model, and one for every pool that serves the
model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from slotgate.admission.demand import Demand
from slotgate.admission.fair_order import FairOrder, Flow, TicketKind, kind_of
from slotgate.admission.pool import SlotPool, mean_service_s
from slotgate.admission.pool_reservation import PoolReservation
from slotgate.admission.ticket import Ticket
from slotgate.admission.waiting_clock import WaitingClock

__all__ = ["ModelQueue", "PoolQueue"]

UNKNOWN_SERVICE_S = 2.0
"""The assumed duration of a lease, until the first one has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolQueue:
    """A pool and the order of the tickets that wait for it."""

    pool: SlotPool
    order: FairOrder
    reservation: PoolReservation = field(default_factory=PoolReservation)


class ModelQueue:
    """The tickets of one model and the pool queues in which they stand."""

    __slots__ = ("_flows", "clock", "pool_queues", "waiting")

    def __init__(self) -> None:
        self.clock = WaitingClock()
        self.pool_queues: tuple[PoolQueue, ...] = ()
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        """All queued tickets in the order of arrival. The first one is also the first to time out."""
        self._flows: dict[tuple[str, TicketKind], Flow] = {}

    @property
    def pools(self) -> list[SlotPool]:
        return [pool_queue.pool for pool_queue in self.pool_queues]

    @property
    def admits(self) -> bool:
        """True if a pool of the model takes requests now."""
        return any(pool_queue.pool.admitting for pool_queue in self.pool_queues)

    @property
    def oldest(self) -> Ticket:
        """The ticket that came first. There must be one."""
        return next(iter(self.waiting.values()))

    def route_to(self, pool_queues: Iterable[PoolQueue], now: float) -> None:
        """Let the model's tickets stand in these pool queues only. They keep the places that they have.

        While every pool is out of service and at least one loads, waits do not count.
        """
        self.pool_queues = tuple(pool_queues)
        loading = [pool.loading_until for pool in self.pools if pool.loading_until is not None]
        self.clock.stand_still(now, max(loading) if loading and not self.admits else None)
        for flow in self._flows.values():
            flow.stand_in(self._orders)

    def too_narrow_for(self, demand: Demand) -> bool:
        """Return True if no pool of the model has enough slots, or may have when it is in service again."""
        return all(pool.admitting and pool.total < demand.width for pool in self.pools)

    def reserved_for(self, ticket: Ticket) -> bool:
        """Return True if the ticket has reserved a pool."""
        return any(pool_queue.reservation.ticket is ticket for pool_queue in self.pool_queues)

    def flow(self, demand: Demand) -> Flow:
        """Return the flow in which tickets with this demand wait. There must be one."""
        return self._flows[_flow_key(demand)]

    def join(self, ticket: Ticket) -> None:
        self.waiting[ticket.seq] = ticket
        key = _flow_key(ticket.demand)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(ticket.demand)
        flow.join(ticket, self._orders)

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out of all queues, and end its reservation if it has one."""
        del self.waiting[ticket.seq]
        flow = self.flow(ticket.demand)
        flow.leave(ticket)
        if not flow.tickets:
            del self._flows[_flow_key(ticket.demand)]
        for pool_queue in self.pool_queues:
            if pool_queue.reservation.ticket is ticket:
                pool_queue.reservation.end()

    def position(self, ticket: Ticket) -> int:
        """Return the position of a queued ticket, 1 for the next, at the pool where it is best.

        O(waiting tickets).
        """
        flow = self.flow(ticket.demand)
        ahead = (pool_queue.order.ahead(flow, ticket) for pool_queue in self.pool_queues)
        return 1 + min(ahead, default=0)

    def wait_s(self, position: int) -> float:
        """Estimate from the observed service rate the seconds until the ticket at this position is served."""
        service_s = mean_service_s(self.pools) or UNKNOWN_SERVICE_S
        return service_s * position / max(1, sum(pool.total for pool in self.pools))

    @property
    def _orders(self) -> list[FairOrder]:
        return [pool_queue.order for pool_queue in self.pool_queues]


def _flow_key(demand: Demand) -> tuple[str, TicketKind]:
    return demand.tenant, kind_of(demand)
