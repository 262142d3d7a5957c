"""Who is next at one pool: start-time fair queueing between tenants, arrival order within one.

Every pool has an `FairOrder`. A ticket waits in a `Flow` (the tickets that one tenant has for one model,
of one kind, in arrival order), and a flow stands in the order of every pool that
may serve it. So pools need not agree on anything, and a busy pool is shared by those who wait for it,
whatever goes on at others.

In an order each tenant has a `Share` with a virtual clock: `finish`, the tag at which the work granted
to it here so far would be done if it got exactly its weight. The flow with the smallest start tag is
next; its start tag is its tenant's `finish`, but not less than the virtual time at which it began to
wait, so that nobody saves up a claim by being idle. Being served moves the tenant's clock by cost /
weight: a tenant that posts a thousand at once has a clock that runs ahead, and delays a newcomer by one
turn only. When the real cost is known the clock is corrected, up or down (`Charge`).

The two priorities are ordered each for itself. Interactive goes first, but after `BATCH_TURN`
interactive tickets that went ahead of waiting batch work one batch ticket goes ahead of them. (Turns,
not seconds: with requests that take a minute, an age in seconds would put batch first always.)

Joining, serving and leaving cost O(log flows), whatever the number of tickets. Heap entries go stale
when a clock moves; they are checked when they reach the top and pushed anew, so that no change has to
search a heap.

This module is pure: no clock, no awaiting, no slots.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.ticket import Ticket

__all__ = ["BATCH_TURN", "Charge", "FairOrder", "Flow", "TicketKind", "kind_of"]

BATCH_TURN = 8
_SPARE = 64
_REMEMBERED = 512
"""Tenants that an order keeps in mind at least, after their last ticket has left it."""


class Share:
    """One tenant at one pool, in one priority: its virtual clock and the flows in which it waits there."""

    __slots__ = ("finish", "flows")

    def __init__(self) -> None:
        self.finish = 0.0
        self.flows: dict[Flow, None] = {}


TicketKind = tuple[Priority, int, bool, int]
"""Priority, width, whether a slot's number can be told, and size in powers of two: where one ticket of a kind
fits, the others mostly do."""


def kind_of(demand: Demand) -> TicketKind:
    return demand.priority, demand.width, demand.numbered, demand.tokens.bit_length()


@dataclass(slots=True)
class Standing:
    """A flow's place in one order."""

    share: Share
    since: float
    """Virtual time when the flow began to wait."""
    entry: int = 0
    """The number of its valid heap entry."""

    @property
    def start(self) -> float:
        return max(self.share.finish, self.since)


class Flow:
    """Tickets that ask alike, in arrival order. It stands in orders only while it has tickets."""

    __slots__ = ("kind", "standings", "tenant", "tickets")

    def __init__(self, demand: Demand) -> None:
        self.tenant = demand.tenant
        self.kind = kind_of(demand)
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self.standings: dict[FairOrder, Standing] = {}

    @property
    def head(self) -> Ticket:
        return next(iter(self.tickets.values()))

    def stand_in(self, orders: Iterable[FairOrder]) -> None:
        """Wait in these orders and in no others, keeping the places that it has."""
        wanted = dict.fromkeys(orders)
        for order in [order for order in self.standings if order not in wanted]:
            order.leave(self)
        for order in wanted:
            if order not in self.standings:
                order.enter(self)

    def join(self, ticket: Ticket, orders: Iterable[FairOrder]) -> None:
        self.tickets[ticket.seq] = ticket
        if len(self.tickets) == 1:
            self.stand_in(orders)

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out: served, withdrawn or refused."""
        was_head = self.head is ticket
        del self.tickets[ticket.seq]
        if not self.tickets:
            self.stand_in(())
        elif was_head:
            for order in self.standings:
                order.restate(self)


class Charge:
    """What a grant has cost its tenant: the estimate, until the real cost is known."""

    __slots__ = ("_cost", "_order", "_share", "_weight")

    def __init__(self, order: FairOrder, share: Share, cost: float, weight: float) -> None:
        self._order = order
        self._share = share
        self._cost = cost
        self._weight = weight

    def settle(self, cost: float) -> None:
        """It was `cost`; 0 if nothing was done. The last call counts."""
        self._share.finish += (cost - self._cost) / self._weight
        self._cost = cost
        self._order.moved(self._share)


class FairOrder:
    """The fair order of all that wait for one pool. Tenants that are not in `weights` weigh 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._heaps: dict[TicketKind, list[tuple[float, int, int, Flow]]] = {}
        self._now = dict.fromkeys(Priority, 0.0)
        self._shares: dict[tuple[Priority, str], Share] = {}
        self._sweep_at = 2 * _REMEMBERED
        self._flows = Counter[Priority]()
        self._entries = itertools.count(1)
        self._passed_batch = 0

    def __repr__(self) -> str:
        entries = sum(map(len, self._heaps.values()))
        return f"<FairOrder {self._flows.total()} flows, {len(self._shares)} tenants, {entries} entries>"

    def heads(self) -> list[Ticket]:
        """The next ticket of each kind, left in its place; first comes first."""
        ranked = []
        for kind, heap in list(self._heaps.items()):
            top = self._top(heap)
            if top is None:
                del self._heaps[kind]  # clients choose widths and sizes: kinds would pile up
            else:
                start, seq, _, flow = top
                ranked.append((self._rank(kind[0]), start, seq, flow))
        if len(ranked) > 1:
            ranked.sort(key=lambda entry: entry[:3])
        return [flow.head for _, _, _, flow in ranked]

    def waits_alone(self, ticket: Ticket) -> bool:
        """Whether nobody else waits here."""
        return sum(self._flows.values()) == 1 and all(
            len(flow.tickets) == 1 for share in self._shares.values() for flow in share.flows
        )

    def charge(self, flow: Flow, cost: float) -> Charge:
        """The head of this flow is served here."""
        standing, priority = flow.standings[self], flow.kind[0]
        if priority is Priority.BATCH:
            self._passed_batch = 0
        elif self._flows[Priority.BATCH]:
            self._passed_batch += 1
        self._now[priority] = max(self._now[priority], standing.start)
        weight = self._weights.get(flow.tenant, 1.0)
        standing.share.finish = standing.start + cost / weight
        self.moved(standing.share)
        return Charge(self, standing.share, cost, weight)

    def ahead(self, flow: Flow, ticket: Ticket) -> int:
        """How many tickets would be served here before this one, if nobody else came. O(tickets)."""
        mine = self._tag(flow, ticket)
        rivals = {rival for share in self._shares.values() for rival in share.flows} - {flow}
        before = sum(1 for seq in flow.tickets if seq < ticket.seq)
        for rival in rivals:
            if rival.kind[0] is flow.kind[0]:
                before += sum(1 for tag in self._tags(rival) if tag < mine)
            elif rival.kind[0] < flow.kind[0]:
                before += len(rival.tickets)
        return before

    def _tag(self, flow: Flow, ticket: Ticket) -> tuple[float, int]:
        return next(tag for tag in self._tags(flow) if tag[1] == ticket.seq)

    def _tags(self, flow: Flow) -> Iterator[tuple[float, int]]:
        """Start tag and number of each ticket of a flow, were its tickets all that its tenant has here."""
        weight = self._weights.get(flow.tenant, 1.0)
        start = flow.standings[self].start
        for ticket in flow.tickets.values():
            yield start, ticket.seq
            start += ticket.demand.cost / weight

    # -- for flows and charges

    def enter(self, flow: Flow) -> None:
        """The flow begins to wait here."""
        priority = flow.kind[0]
        share = self._share(priority, flow.tenant)
        flow.standings[self] = Standing(share, self._now[priority])
        share.flows[flow] = None
        self._flows[priority] += 1
        self.restate(flow)

    def leave(self, flow: Flow) -> None:
        """The flow waits here no longer."""
        del flow.standings.pop(self).share.flows[flow]
        self._flows[flow.kind[0]] -= 1

    def restate(self, flow: Flow) -> None:
        """State anew where a flow stands; older entries of it become void."""
        standing = flow.standings[self]
        standing.entry = next(self._entries)
        heap = self._heaps.setdefault(flow.kind, [])
        heapq.heappush(heap, (standing.start, flow.head.seq, standing.entry, flow))
        if len(heap) > _SPARE + 4 * self._flows[flow.kind[0]]:
            heap[:] = [entry for entry in heap if self._valid(entry)]
            heapq.heapify(heap)

    def moved(self, share: Share) -> None:
        """The clock of a share was changed."""
        for flow in share.flows:
            self.restate(flow)

    # -- mechanism

    def _top(self, heap: list[tuple[float, int, int, Flow]]) -> tuple[float, int, int, Flow] | None:
        while heap:
            if self._valid(heap[0]):
                return heap[0]
            heapq.heappop(heap)
        return None

    def _valid(self, entry: tuple[float, int, int, Flow]) -> bool:
        standing = entry[3].standings.get(self)
        return standing is not None and standing.entry == entry[2]

    def _rank(self, priority: Priority) -> int:
        return -1 if priority is Priority.BATCH and self._passed_batch >= BATCH_TURN else int(priority)

    def _share(self, priority: Priority, tenant: str) -> Share:
        key = priority, tenant
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= self._sweep_at:
                self._sweep()
            share = self._shares[key] = Share()
        return share

    def _sweep(self) -> None:
        """Forget tenants that wait for nothing here, but for those whose clocks are furthest ahead."""
        idle = [key for key, share in self._shares.items() if not share.flows]
        idle.sort(key=lambda key: self._shares[key].finish - self._now[key[0]])
        for key in idle[:-_REMEMBERED]:
            del self._shares[key]
        self._sweep_at = 2 * len(self._shares) + _REMEMBERED
