"""The two kinds of queue in which a ticket waits: that of its model, and that of each pool of the model.

A model's queue ranks its flows once, for all its pools. A pool's queue compares the next flows of all kinds
of all models that the pool serves. This module is pure: the times are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.expected_wait import ExpectedWait, expected_wait
from slotgate.admission.fair_order import FairOrder
from slotgate.admission.flow import Flow, Ranking, SettledRanking, TicketKind, kind_of
from slotgate.admission.pool import SlotPool
from slotgate.admission.pool_reservation import PoolReservation
from slotgate.admission.queue_bounds import QueueLimits
from slotgate.admission.ticket import Ticket
from slotgate.admission.waiting_clock import WaitingClock

__all__ = ["ModelQueue", "PoolQueue"]

_SPARE_RANKINGS = 16
"""Rankings that are kept although no flow is in them. Clients choose widths and sizes, so the kinds of
tickets that do not come again would pile up."""


@dataclass(slots=True, eq=False)
class PoolQueue:
    """A pool, the queues of the models that it serves, and the order that it belongs to."""

    pool: SlotPool
    order: FairOrder
    model_queues: list[ModelQueue] = field(default_factory=list)
    reservation: PoolReservation = field(default_factory=PoolReservation)

    def waits_alone(self) -> bool:
        """Return True if exactly one ticket could be served here."""
        return sum(len(model_queue.waiting) for model_queue in self.model_queues) == 1

    def waits(self, priority: Priority) -> bool:
        """Return True if a ticket of this priority could be served here."""
        return any(model_queue.flow_counts[priority] for model_queue in self.model_queues)

    def heads(self, now: float) -> list[tuple[float, int, int, Flow]]:
        """Yield the next flow of every kind of every model, in the order in which they are due."""
        by_class: tuple[list[tuple[float, int, int, Flow]], ...] = ([], [])
        for model_queue in self.model_queues:
            if model_queue.waiting:
                for top in model_queue.tops(now):
                    by_class[top[3].priority].append(top)
        interactive, batch = by_class
        interactive.sort()
        if not batch:
            return interactive
        batch.sort()
        if not interactive:
            return batch
        return batch + interactive if self.order.batch_first(now) else interactive + batch


class ModelQueue:
    """The tickets of one model and the pools that may serve them."""

    __slots__ = (
        "_by_priority",
        "_flows",
        "_rankings",
        "clock",
        "flow_counts",
        "groups",
        "pool_queues",
        "settled",
        "waiting",
    )

    def __init__(self) -> None:
        self.clock = WaitingClock()
        self.pool_queues: tuple[PoolQueue, ...] = ()
        self.groups: Sequence[tuple[PoolQueue, ...]] = ()
        """The pools of the model. Pools that serve the same models are grouped."""
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        """All queued tickets in the order of arrival."""
        self.settled = (SettledRanking(Priority.INTERACTIVE), SettledRanking(Priority.BATCH))
        self.flow_counts = [0, 0]
        """Priority -> flows that have tickets."""
        self._by_priority: tuple[OrderedDict[int, Ticket], ...] = (OrderedDict(), OrderedDict())
        """The same tickets by priority. The first of each is also the first to time out."""
        self._flows: dict[tuple[str, TicketKind], Flow] = {}
        self._rankings: dict[TicketKind, Ranking] = {}

    @property
    def pools(self) -> list[SlotPool]:
        return [pool_queue.pool for pool_queue in self.pool_queues]

    @property
    def admits(self) -> bool:
        """True if a pool of the model takes requests now."""
        return any(pool_queue.pool.admitting for pool_queue in self.pool_queues)

    @property
    def order(self) -> FairOrder:
        return self.pool_queues[0].order

    @property
    def flow_count(self) -> int:
        return len(self._flows)

    @property
    def oldest(self) -> Ticket:
        """The ticket that came first. There must be one."""
        return next(iter(self.waiting.values()))

    @property
    def open_pools(self) -> list[PoolQueue]:
        """The pools at which a change of this queue may settle a ticket: with free slots or a reservation."""
        return [
            pool_queue
            for pool_queue in self.pool_queues
            if pool_queue.reservation.ticket is not None or pool_queue.pool.free
        ]

    def route_to(self, pool_queues: Iterable[PoolQueue], now: float) -> None:
        """Let the model's tickets wait for these pools only. They keep their places.

        While no pool is in service and at least one loads, the clock of the waits stands still.
        """
        self.pool_queues = tuple(pool_queues)
        loading = [pool.loading_until for pool in self.pools if pool.loading_until is not None]
        self.clock.stand_still(now, max(loading) if loading and not self.admits else None)

    def settle_in(self, now: float) -> None:
        """Group the pools by the models that they serve, and move all flows to the pools' fair order.

        Call it when all pool queues have their models and orders.
        """
        groups: dict[tuple[int, ...], list[PoolQueue]] = {}
        for pool_queue in self.pool_queues:
            served = tuple(map(id, pool_queue.model_queues))
            groups.setdefault(served, []).append(pool_queue)
        self.groups = [tuple(group) for group in groups.values()]
        for flow in self._flows.values():
            if flow.order is not self.order:
                flow.move(self.order, now)

    def level(self, priority: Priority, now: float) -> float | None:
        """Return the level at which a tenant begins to wait for this model; None if no other tenant waits.

        The level at one pool is the least settled value of the tenants that wait there. The highest of all
        pools counts.
        """
        level: float | None = None
        for group in self.groups:
            if not any(pool_queue.pool.admitting for pool_queue in group):
                continue
            rivals = (
                model_queue.settled[priority].least(now)
                for model_queue in group[0].model_queues
                if model_queue.flow_counts[priority]
            )
            least = min((settled for settled in rivals if settled is not None), default=None)
            if least is not None and (level is None or least > level):
                level = least
        return level

    def too_narrow_for(self, demand: Demand) -> bool:
        """Return True if the demand needs more slots than any pool of the model has.

        A pool that is out of service may come back with more slots, so it counts as wide enough.
        """
        return all(pool.admitting and pool.total < demand.width for pool in self.pools)

    def due_at(self, ticket: Ticket, limits: QueueLimits) -> float:
        """Return the time at which this ticket times out."""
        return self.clock.when(ticket.counts_from + limits.timeout_s(ticket.demand.priority))

    def next_to_time_out(self, limits: QueueLimits) -> tuple[float, Ticket]:
        """Return the time of the next time-out, and the ticket that times out. There must be one."""
        heads = [next(iter(tickets.values())) for tickets in self._by_priority if tickets]
        return min(((self.due_at(ticket, limits), ticket) for ticket in heads), key=lambda due: due[0])

    def reserved_for(self, ticket: Ticket) -> bool:
        """Return True if the ticket has reserved a pool."""
        return any(pool_queue.reservation.ticket is ticket for pool_queue in self.pool_queues)

    def flow(self, demand: Demand) -> Flow:
        """Return the flow in which tickets with this demand wait. There must be one."""
        return self._flows[demand.tenant, kind_of(demand)]

    def ranking(self, kind: TicketKind) -> Ranking:
        ranking = self._rankings.get(kind)
        if ranking is None:
            if len(self._rankings) > _SPARE_RANKINGS + 2 * len(self._flows):
                kinds = {flow.kind for flow in self._flows.values()}
                self._rankings = {kind: self._rankings[kind] for kind in self._rankings.keys() & kinds}
            ranking = self._rankings[kind] = Ranking()
        return ranking

    def tops(self, now: float) -> Iterator[tuple[float, int, int, Flow]]:
        """Yield the next flow of each kind."""
        for kind, ranking in list(self._rankings.items()):
            top = ranking.top(now)
            if top is None:
                del self._rankings[kind]
            else:
                yield top

    def join(self, ticket: Ticket, now: float) -> bool:
        """Add a ticket. Return True if it starts a new flow: only such a ticket can be granted at once."""
        self.waiting[ticket.seq] = self._by_priority[ticket.demand.priority][ticket.seq] = ticket
        name = ticket.demand.tenant, kind_of(ticket.demand)
        flow = self._flows.get(name)
        if flow is not None:
            flow.join(ticket, now)
            return flow.head is ticket
        flow = self._flows[name] = Flow(ticket.demand, self, self.order)
        flow.join(ticket, now)
        self.flow_counts[flow.priority] += 1
        return True

    def leave(self, ticket: Ticket, now: float) -> None:
        """Take a ticket out of all queues, and end its reservation if it has one."""
        del self.waiting[ticket.seq], self._by_priority[ticket.demand.priority][ticket.seq]
        flow = self.flow(ticket.demand)
        if len(flow.tickets) == 1:
            del self._flows[ticket.demand.tenant, flow.kind]
            self.flow_counts[flow.priority] -= 1
        flow.leave(ticket, now)
        for pool_queue in self.pool_queues:
            if pool_queue.reservation.ticket is ticket:
                pool_queue.reservation.end()

    def expected_wait(self, ticket: Ticket, now: float) -> ExpectedWait:
        """Return the position of a queued ticket and the seconds that it will probably wait."""
        flow = self.flow(ticket.demand)
        before = next(number for number, seq in enumerate(flow.tickets) if seq == ticket.seq)
        return self._expected_wait(
            flow.account.tenant,
            flow.priority,
            value=flow.value,
            before=before,
            guess=ticket.guess,
            now=now,
        )

    def expected_wait_of_next(
        self, tenant: str, priority: Priority, guess: float, now: float
    ) -> ExpectedWait:
        """Return the position and the wait that the next ticket of a tenant would have."""
        account = self.order.accounts.get(tenant)
        if account is not None and account.waits[priority]:
            value = account.clocks[priority].value
        else:
            value = self.level(priority, now) or 0.0
            if account is not None:
                value = max(value, account.clocks[priority].value)
        before = sum(len(flow.tickets) for flow in self._flows.values() if flow.account.tenant == tenant)
        return self._expected_wait(tenant, priority, value=value, before=before, guess=guess, now=now)

    def _expected_wait(
        self, tenant: str, priority: Priority, *, value: float, before: int, guess: float, now: float
    ) -> ExpectedWait:
        queues = dict.fromkeys(queue for group in self.groups for queue in group[0].model_queues)
        return expected_wait(
            self.order,
            tenant,
            priority,
            value=value,
            before=before,
            guess=guess,
            rivals=[flow for queue in queues for flow in queue._flows.values()],
            pools=self.pools,
            now=now,
        )
