"""Flows, which are a tenant's tickets of the same kind, and the heaps that rank them.

A flow holds the tickets of one tenant, model and kind in order of arrival. Each model has one `Ranking` for
all flows of a kind, ordered by the clocks of their tenants. Clocks change all the time, and mostly move
forward. So an entry keeps the value that the clock had when the entry was made, and is compared with the
clock only when it reaches the top. If a clock is put back, its flows get new entries. To join, to serve and
to leave cost O(log flows), whatever the number of tickets.

This module is pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.fair_order import Account, FairOrder
from slotgate.admission.ticket import Ticket

if TYPE_CHECKING:
    from slotgate.admission.queues import ModelQueue

__all__ = ["Flow", "Ranking", "TicketKind", "kind_of"]

_SPARE = 64

TicketKind = tuple[Priority, int, bool, int]
"""Priority, width, True if the request can name its slot, and size in powers of two. If one ticket of a kind
fits, the others mostly do."""


def kind_of(demand: Demand) -> TicketKind:
    return demand.priority, demand.width, demand.numbered, demand.tokens.bit_length()


class Flow:
    """The tickets of one tenant, model and kind, in arrival order."""

    __slots__ = ("account", "entry", "kind", "model_queue", "order", "priority", "stated", "tickets")

    def __init__(self, demand: Demand, model_queue: ModelQueue, order: FairOrder) -> None:
        self.kind = kind_of(demand)
        self.priority = demand.priority
        self.model_queue = model_queue
        self.order = order
        self.account: Account = order.account(demand.tenant)
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self.entry = 0
        """The number of the flow's valid entry in its ranking; 0 while it has none."""
        self.stated = 0.0
        """The value in that entry. The clock of its tenant shows at least this, unless it is put back."""

    def __repr__(self) -> str:
        return f"<Flow of {self.account.tenant}, {len(self.tickets)} tickets>"

    @property
    def head(self) -> Ticket:
        return next(iter(self.tickets.values()))

    @property
    def value(self) -> float:
        """The value of its tenant's clock, by which flows are ranked."""
        return self.account.clocks[self.priority].value

    def join(self, ticket: Ticket, now: float) -> None:
        comes_back = bool(self.tickets) and ticket.seq < next(reversed(self.tickets))
        self.tickets[ticket.seq] = ticket
        if comes_back:  # its first attempt failed, and it keeps its place in the order of arrival
            self.tickets = OrderedDict(sorted(self.tickets.items()))
            if self.head is ticket:
                self.restate()
        elif len(self.tickets) == 1:
            self.order.begin_to_wait(self, now)
            self.model_queue.settled[self.priority].push(self)
            self.restate()

    def leave(self, ticket: Ticket, now: float) -> None:
        """Take a ticket out, because it was served, withdrawn or refused."""
        was_head = self.head is ticket
        del self.tickets[ticket.seq]
        if not self.tickets:
            self.entry = 0
            self.order.end_to_wait(self, now)
        elif was_head:
            self.restate()

    def restate(self) -> None:
        """Make a new entry in the ranking. Older entries of this flow become invalid."""
        self.model_queue.ranking(self.kind).push(self)

    def move(self, order: FairOrder, now: float) -> None:
        """Move to another fair order."""
        self.order.end_to_wait(self, now)
        self.order = order
        self.account = order.account(self.account.tenant)
        order.begin_to_wait(self, now)
        self.restate()

    def rivals_level(self, now: float) -> float | None:
        """Return the level at which a tenant begins to wait here (`ModelQueue.level`), or None."""
        return self.model_queue.level(self.priority, now)


class Ranking:
    """The flows of one kind of one model. The least clock is first; of equal clocks, the earliest ticket."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Flow]] = []
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, flow: Flow) -> None:
        flow.entry = next(self._numbers)
        flow.stated = flow.value
        heapq.heappush(self._heap, (flow.stated, flow.head.seq, flow.entry, flow))
        if len(self._heap) > _SPARE and len(self._heap) > 4 * flow.model_queue.flow_count:
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapq.heapify(self._heap)

    def top(self, now: float) -> tuple[float, int, int, Flow] | None:
        """Return the entry of the next flow: clock value, number of its head, number of the entry, flow."""
        heap = self._heap
        while heap:
            value, seq, number, flow = entry = heap[0]
            if flow.entry != number:
                heapq.heappop(heap)
                continue
            flow.account.update(now)
            current = flow.value
            if current <= value:
                return entry
            flow.stated = current
            heapq.heapreplace(heap, (current, seq, number, flow))
        return None


class SettledRanking:
    """The tenants that wait for one model with one priority, ordered by the settled parts of their clocks."""

    __slots__ = ("_heap", "_members", "_numbers", "_priority")

    def __init__(self, priority: Priority) -> None:
        self._priority = priority
        self._heap: list[tuple[float, int, Flow]] = []
        self._members: dict[Flow, int] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, flow: Flow) -> None:
        """Add a flow that begins to wait."""
        number = self._members[flow] = next(self._numbers)
        heapq.heappush(self._heap, (flow.account.clocks[self._priority].settled, number, flow))
        if len(self._heap) > _SPARE and len(self._heap) > 4 * flow.model_queue.flow_count:
            self._heap = [entry for entry in self._heap if self._waits(entry[2], entry[1])]
            self._members = {entry[2]: entry[1] for entry in self._heap}
            heapq.heapify(self._heap)

    def least(self, now: float) -> float | None:
        """Return the least settled value, or None if no tenant waits."""
        heap = self._heap
        while heap:
            settled, number, flow = heap[0]
            if not self._waits(flow, number):
                heapq.heappop(heap)
                if self._members.get(flow) == number:
                    del self._members[flow]
                continue
            flow.account.update(now)
            current = flow.account.clocks[self._priority].settled
            if current <= settled:
                return current
            heapq.heapreplace(heap, (current, number, flow))
        return None

    def _waits(self, flow: Flow, number: int) -> bool:
        return bool(flow.tickets) and self._members.get(flow) == number
