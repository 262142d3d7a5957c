"""Chooses which ticket a pool serves next, and at which of its model's pools.

The first ticket in the order of `admission.fair_order` that fits is next. There are three deviations:

* A ticket that needs more than is free reserves the pool, and others pass only if they do not delay it
  (`admission.pool_reservation`). If it misses only its one slot, no later ticket passes it.
* A ticket may be served at a pool whose cache holds more of its prompt, or wait a moment for that pool
  (`admission.warmth`).
* A ticket that no pool is wide enough for comes out, too, so that it can be refused.

This module never awaits and changes no queue. It begins reservations, and notes how many slots they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slotgate.admission.pool import SlotPool
from slotgate.admission.pool_reservation import Reach, reach
from slotgate.admission.queues import ModelQueue, PoolQueue
from slotgate.admission.ticket import Ticket
from slotgate.admission.warmth import WORTH_A_WAIT_BYTES, Patience, gain_bytes, warmer_queues

__all__ = ["Selection"]


class Selection:
    def __init__(
        self, model_queues: Mapping[str, ModelQueue], due_at: Callable[[ModelQueue, Ticket], float]
    ) -> None:
        """`due_at` returns the time at which the wait of a ticket is over."""
        self.patience = Patience()
        self._model_queues = model_queues
        self._due_at = due_at

    def first(self, pool_queue: PoolQueue, now: float) -> Ticket | None:
        """Return the ticket to settle next at this pool: it fits, or no pool will ever be wide enough.

        Reserves the pool for a wide ticket that comes first and does not fit.
        """
        pool, reservation = pool_queue.pool, pool_queue.reservation
        if not pool.admitting:
            return None
        reservation.idle_slots = 0
        reserved = None
        if reservation.ticket is not None:
            if pool.fits(reservation.ticket.demand):
                return reservation.ticket
            if reservation.holds(now):
                reserved = self._reach(pool, reservation.ticket, now)
        for _, _, _, flow in pool_queue.heads(now):
            ticket, model_queue = flow.head, flow.model_queue
            width = pool.width_of(ticket.demand)
            if model_queue.too_narrow_for(ticket.demand):
                return ticket
            if pool.fits(ticket.demand):
                if reserved is None or _passes(ticket, width, reserved, now):
                    return ticket
                reservation.idle_slots = pool.free
            elif width == 1 and pool.has_room(ticket.demand):
                break
            elif width <= pool.total and reservation.ticket is None and not model_queue.reserved_for(ticket):
                reserved = self._reach(pool, ticket, now)
                if reserved is not None:
                    reservation.begin(ticket, now, reserved.at)
        return None

    def warmest(
        self, ticket: Ticket, pool_queue: PoolQueue, now: float, max_wait_s: float
    ) -> PoolQueue | None:
        """Return the warmest pool queue at which this queue's next ticket is next, or None if it waits.

        `max_wait_s` is the time for which a ticket may decline a cold slot.
        """
        warmer = warmer_queues(ticket, pool_queue, self._model_queues[ticket.demand.model].pool_queues)
        if not warmer:
            return pool_queue
        for other in warmer:
            if other.pool.fits(ticket.demand) and self.first(other, now) is ticket:
                return other
        worth_it = gain_bytes(ticket, pool_queue, warmer[0]) >= WORTH_A_WAIT_BYTES
        waits = worth_it and pool_queue.waits_alone() and self.patience.lasts(ticket, now, max_wait_s)
        return None if waits else pool_queue

    def still_reachable(self, pool_queue: PoolQueue, ticket: Ticket) -> bool:
        """Return True if a reservation of this pool for a ticket can still be fulfilled."""
        pool = pool_queue.pool
        stands_here = pool_queue in self._model_queues[ticket.demand.model].pool_queues
        return stands_here and pool.admitting and pool.width_of(ticket.demand) <= pool.total

    def _reach(self, pool: SlotPool, ticket: Ticket, now: float) -> Reach | None:
        """Return when the pool will have the width of a ticket; None if not before its wait is over."""
        expected = reach(pool, ticket.demand, now)
        if expected is None or expected.at > self._due_at(self._model_queues[ticket.demand.model], ticket):
            return None
        return expected


def _passes(ticket: Ticket, width: int, reserved: Reach, now: float) -> bool:
    """Return True if a ticket does not delay the wide ticket that the pool is reserved for."""
    return width <= reserved.spare or now + ticket.guess / ticket.demand.width < reserved.at
