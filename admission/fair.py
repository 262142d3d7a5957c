"""Who is next: start-time fair queueing between tenants, arrival order within one.

Each tenant has a virtual clock: `finish`, the tag at which the work granted to it so far would be done
if it got exactly its share. A waiting tenant's start tag is the larger of that and of the virtual
time at which its first ticket came; the smallest start tag is served, and becomes the virtual time.
Being served moves the tenant's clock by cost / weight, so a tenant that posts a thousand at once has a
clock that runs ahead and delays a newcomer by one turn only. A tenant that was idle gets no credit
for it. When the real cost is known the clock is corrected, up or down.

A `Line` is the order of one priority class of one model: a heap of flows (one a tenant), each an ordered
dictionary of tickets, so that joining, serving and withdrawing cost O(log tenants), O(log tenants), O(1),
whatever the number of tickets. Heap entries go stale when a clock moves; they are checked when they
reach the top and pushed anew, so that no change has to search the heap.

This module is pure: no clock, no awaiting, no slots.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from admission.ticket import Ticket

__all__ = ["FairClock", "Line", "TenantClock"]


class TenantClock:
    """The virtual clock of one tenant, shared by all lines it waits in."""

    __slots__ = ("finish", "flows", "name", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.finish = 0.0
        self.flows: dict[Line, Flow] = {}


class FairClock:
    """Virtual time and the tenants' clocks. Forgets tenants that no longer matter."""

    def __init__(self) -> None:
        self.now = 0.0
        self._tenants: dict[str, TenantClock] = {}
        self._weights: dict[str, float] = {}

    def set_weights(self, weights: dict[str, float]) -> None:
        """Weights by tenant name; a tenant that is not named has weight 1."""
        self._weights = dict(weights)
        for tenant in self._tenants.values():
            tenant.weight = self._weights.get(tenant.name, 1.0)

    def tenant(self, name: str) -> TenantClock:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = TenantClock(name, self._weights.get(name, 1.0))
        return tenant

    def charge(self, ticket: Ticket, start: float) -> None:
        """The ticket is served, with this start tag."""
        tenant = self.tenant(ticket.demand.tenant)
        self.now = max(self.now, start)
        ticket.charged = ticket.demand.cost / tenant.weight
        tenant.finish = max(tenant.finish, start) + ticket.charged
        self._moved(tenant)

    def correct(self, tenant_name: str, difference: float) -> None:
        """The real cost was `difference` tokens above (or below) the estimate."""
        tenant = self._tenants.get(tenant_name)
        if tenant is not None:
            tenant.finish = max(0.0, tenant.finish + difference / tenant.weight)
            self._moved(tenant)

    def refund(self, ticket: Ticket) -> None:
        """The ticket was served but nothing was done with it."""
        tenant = self._tenants.get(ticket.demand.tenant)
        if tenant is not None and ticket.charged:
            tenant.finish -= ticket.charged
            ticket.charged = 0.0
            self._moved(tenant)

    def forget_if_idle(self, name: str) -> None:
        """Drop a tenant whose clock no longer says anything: nothing waits, and it is not ahead."""
        tenant = self._tenants.get(name)
        if tenant is not None and not tenant.flows and tenant.finish <= self.now:
            del self._tenants[name]

    def _moved(self, tenant: TenantClock) -> None:
        for line, flow in tenant.flows.items():
            line.push(flow)


class Flow:
    """The waiting tickets of one tenant in one line, in arrival order."""

    __slots__ = ("entry", "tenant", "tickets")

    def __init__(self, tenant: TenantClock) -> None:
        self.tenant = tenant
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self.entry = 0

    @property
    def head(self) -> Ticket:
        return next(iter(self.tickets.values()))

    @property
    def start(self) -> float:
        return max(self.tenant.finish, self.head.arrival_tag)


class Line:
    """Tickets of one model and one priority, in fair order."""

    __slots__ = ("_clock", "_entries", "_heap", "size")

    def __init__(self, clock: FairClock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, int, Flow]] = []
        self._entries = 0
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def join(self, ticket: Ticket) -> None:
        tenant = self._clock.tenant(ticket.demand.tenant)
        ticket.arrival_tag = self._clock.now
        flow = tenant.flows.get(self)
        if flow is None:
            flow = tenant.flows[self] = Flow(tenant)
        flow.tickets[ticket.seq] = ticket
        self.size += 1
        if len(flow.tickets) == 1:
            self.push(flow)

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out of its flow: served or withdrawn."""
        tenant = self._clock.tenant(ticket.demand.tenant)
        flow = tenant.flows[self]
        was_head = flow.head is ticket
        del flow.tickets[ticket.seq]
        self.size -= 1
        if not flow.tickets:
            flow.entry = 0
            del tenant.flows[self]
        elif was_head:
            self.push(flow)

    def push(self, flow: Flow) -> None:
        """(Re)state where a flow stands; older entries of it become void."""
        self._entries += 1
        flow.entry = self._entries
        heapq.heappush(self._heap, (flow.start, flow.head.seq, flow.entry, flow))
        if len(self._heap) > 64 and len(self._heap) > 4 * self.size:
            self._heap = [item for item in self._heap if item[3].entry == item[2]]
            heapq.heapify(self._heap)

    def first(self) -> tuple[float, Ticket] | None:
        """The next ticket and its start tag, left in its place."""
        heap = self._heap
        while heap:
            start, _, entry, flow = heap[0]
            if flow.entry == entry:
                return start, flow.head
            heapq.heappop(heap)
        return None
