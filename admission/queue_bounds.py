"""Chooses the tickets that leave a full queue: those of the tenant that uses most of it.

If a full queue simply refused newcomers, one tenant could shut all others out. So the tenant that uses most
of a full queue loses its newest ticket. The newcomer is refused only if its own tenant uses most, with the
newcomer counted in. In this way every tenant is sure of an equal part, and others may use what it leaves
free. The bytes of bodies are bounded in the same way (`admission.body_budget`).

This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.ticket import Ticket

__all__ = ["NoRoom", "QueueLimits", "WaitingCounts"]


class NoRoom(Exception):
    """The newcomer is refused, because its own tenant uses most. The text says which bound is reached."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_queue: int
    """Tickets that may wait for one model."""
    max_queue_per_tenant: int
    """Tickets of one tenant that may wait, for all models together."""
    queue_timeout_s: float
    affinity_max_wait_s: float = 0.0
    """Seconds for which a ticket may decline a cold slot while a warm pool is busy."""
    batch_queue_timeout_s: float | None = None
    """The time-out of batch tickets, which let others go first; None: `queue_timeout_s`."""

    def timeout_s(self, priority: Priority) -> float:
        """Return the seconds for which a ticket of this priority may wait."""
        if priority is Priority.INTERACTIVE or self.batch_queue_timeout_s is None:
            return self.queue_timeout_s
        return self.batch_queue_timeout_s


class WaitingCounts:
    """The number of waiting tickets by tenant. Falsy while no ticket waits."""

    __slots__ = ("tickets",)

    def __init__(self) -> None:
        self.tickets: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<WaitingCounts {self.tickets.total()} tickets>"

    def __bool__(self) -> bool:
        return bool(self.tickets)

    def add(self, demand: Demand) -> None:
        self.tickets[demand.tenant] += 1

    def remove(self, demand: Demand) -> None:
        tenant = demand.tenant
        self.tickets[tenant] -= 1
        if not self.tickets[tenant]:
            del self.tickets[tenant]

    def too_many(self, newcomer: Ticket, waiting: Collection[Ticket], limits: QueueLimits) -> list[Ticket]:
        """Return the tickets that leave because too many wait. `waiting` are those of the newcomer's model.

        Raises `NoRoom` if the newcomer has to leave itself.
        """
        if self.tickets[newcomer.demand.tenant] > limits.max_queue_per_tenant:
            raise NoRoom(f"{limits.max_queue_per_tenant} requests of this key already wait")
        if len(waiting) <= limits.max_queue:
            return []
        by_tenant: dict[str, list[Ticket]] = {}
        for ticket in waiting:
            by_tenant.setdefault(ticket.demand.tenant, []).append(ticket)
        leaving: list[Ticket] = []
        while len(waiting) - len(leaving) > limits.max_queue:
            most = max(by_tenant.values(), key=len)
            if len(by_tenant[newcomer.demand.tenant]) >= len(most):
                raise NoRoom(f"{limits.max_queue} requests already wait for this model")
            leaving.append(most.pop())
        return leaving
