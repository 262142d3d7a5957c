"""Chooses the tickets that leave a full queue: those of the tenant that uses most of it.

If a full queue simply refused newcomers, one tenant could shut all others out: with eight bodies of 32 MiB,
or with as many requests as it may have. So the tenant that uses most of a full queue loses its newest tickets
until the rest fits. The newcomer is refused only if its own tenant uses most, with the newcomer counted in.
In this way every tenant is sure of an equal part, and others may use what it leaves free. Two things are
bounded: the number of tickets of each model, and the bytes of all waiting bodies.

This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.ticket import Ticket

__all__ = ["NoRoom", "QueueLimits", "WaitingCounts", "make_room"]


class NoRoom(Exception):
    """The newcomer is refused, because its own tenant uses most. The text says which bound is reached."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_queue: int
    """Tickets that may wait for one model."""
    max_queue_per_tenant: int
    """Tickets of one tenant that may wait, for all models together."""
    max_queue_bytes: int
    """Bytes of all waiting bodies together."""
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
    """The number of waiting tickets and the bytes of their bodies, by tenant. Falsy while no ticket waits."""

    __slots__ = ("body_bytes", "tickets")

    def __init__(self) -> None:
        self.tickets: Counter[str] = Counter()
        self.body_bytes: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<WaitingCounts {self.tickets.total()} tickets, {self.body_bytes.total()} bytes>"

    def __bool__(self) -> bool:
        return bool(self.tickets)

    def add(self, demand: Demand) -> None:
        self.tickets[demand.tenant] += 1
        self.body_bytes[demand.tenant] += demand.body_bytes

    def remove(self, demand: Demand) -> None:
        tenant = demand.tenant
        self.tickets[tenant] -= 1
        self.body_bytes[tenant] -= demand.body_bytes
        if not self.tickets[tenant]:
            del self.tickets[tenant], self.body_bytes[tenant]

    def too_many(self, newcomer: Ticket, waiting: Collection[Ticket], limits: QueueLimits) -> list[Ticket]:
        """Return the tickets that leave because too many wait. `waiting` are those of the newcomer's model.

        Raises `NoRoom` if the newcomer has to leave itself.
        """
        if self.tickets[newcomer.demand.tenant] > limits.max_queue_per_tenant:
            raise NoRoom(f"{limits.max_queue_per_tenant} requests of this key already wait")
        if len(waiting) <= limits.max_queue:
            return []
        by_tenant = Counter(ticket.demand.tenant for ticket in waiting)
        leaving = make_room(newcomer, lambda: reversed([*waiting]), by_tenant, limits.max_queue)
        if leaving is None:
            raise NoRoom(f"{limits.max_queue} requests already wait for this model")
        return leaving

    def too_large(
        self, newcomer: Ticket, newest_first: Callable[[], Iterable[Ticket]], limits: QueueLimits
    ) -> list[Ticket]:
        """Return the tickets that leave because the bodies of all waiting tickets are too large together.

        Raises `NoRoom` if the newcomer has to leave itself.
        """
        if self.body_bytes.total() <= limits.max_queue_bytes:
            return []
        leaving = make_room(
            newcomer,
            newest_first,
            self.body_bytes,
            limits.max_queue_bytes,
            lambda ticket: ticket.demand.body_bytes,
        )
        if leaving is None:
            raise NoRoom("the waiting requests have reached their memory limit")
        return leaving


def make_room(
    newcomer: Ticket,
    newest_first: Callable[[], Iterable[Ticket]],
    used: Mapping[str, int],
    limit: int,
    size: Callable[[Ticket], int] = lambda _: 1,
) -> list[Ticket] | None:
    """Return the tickets that leave so that `limit` is kept, or None if the newcomer is refused.

    `used` is what each tenant uses, the newcomer counted in. `newest_first` yields the tickets that wait.
    """
    excess = sum(used.values()) - limit
    if excess <= 0:
        return []
    left = dict(used)
    if left[newcomer.demand.tenant] >= max(left.values()):
        return None
    by_tenant: dict[str, list[Ticket]] = {}
    for ticket in newest_first():
        if size(ticket):
            by_tenant.setdefault(ticket.demand.tenant, []).append(ticket)
    for tickets in by_tenant.values():
        tickets.reverse()
    leaving = []
    while excess > 0:
        tenant = max(left, key=lambda name: left[name])
        if left[newcomer.demand.tenant] >= left[tenant]:
            return None
        ticket = by_tenant[tenant].pop()
        leaving.append(ticket)
        left[tenant] -= size(ticket)
        excess -= size(ticket)
    return leaving
