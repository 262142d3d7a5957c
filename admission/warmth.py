"""Prefers the pool that has a request's prompt in its cache.

A ticket that is next at one pool takes a slot of a warmer pool instead if it is next there as well. If the
warmer pools are busy and one of them has much of the prompt in its cache, the ticket may decline the cold
slot and wait for a moment. It may do so once, and only while no other ticket could use the slot: a cache hit
saves prompt processing, but an idle slot serves no request.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotgate.admission.queues import PoolQueue
from slotgate.admission.ticket import Ticket

__all__ = ["Patience", "gain_bytes", "warmer_queues"]

WORTH_A_WAIT_BYTES = 2048
"""A cached prefix of this size is worth a moment's wait: it has some hundred tokens."""


def gain_bytes(ticket: Ticket, cold: PoolQueue, warm: PoolQueue) -> int:
    """Return how many more bytes of the ticket's prompt the warm pool has in its cache than the cold one."""
    warmth = ticket.demand.warmth
    return warmth.get(warm.pool.name, 0) - warmth.get(cold.pool.name, 0)


def warmer_queues(ticket: Ticket, here: PoolQueue, others: Iterable[PoolQueue]) -> list[PoolQueue]:
    """Return the queues of pools in service that are warmer than this one, the warmest and freest first."""
    if not ticket.demand.warmth:
        return []
    warmer = [other for other in others if other.pool.admitting and gain_bytes(ticket, here, other) > 0]
    return sorted(warmer, key=lambda other: (-gain_bytes(ticket, here, other), -other.pool.free))


class Patience:
    """The tickets that decline a cold slot for now. Each of them has one time limit for its whole wait."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: set[Ticket] = set()

    def __repr__(self) -> str:
        return f"<Patience of {len(self._tickets)} tickets>"

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def lasts(self, ticket: Ticket, now: float, max_wait_s: float) -> bool:
        """Return True while the ticket may decline a cold slot. The first call starts its time."""
        if ticket.patient_until is None:
            ticket.patient_until = now + max_wait_s
            self._tickets.add(ticket)
        return now < ticket.patient_until

    def forget(self, ticket: Ticket) -> None:
        """Forget a ticket that has left the queue."""
        self._tickets.discard(ticket)

    def expire(self, now: float) -> None:
        """Forget the tickets whose time is over."""
        self._tickets = {ticket for ticket in self._tickets if now < (ticket.patient_until or 0)}

    def next_end_at(self) -> float | None:
        """Return the time at which the first ticket's patience ends."""
        times = [ticket.patient_until for ticket in self._tickets if ticket.patient_until is not None]
        return min(times, default=None)
