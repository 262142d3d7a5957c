"""Chooses which ticket a pool serves next, and at which of its model's pools.

The first ticket that fits, in the order of `admission.fair_order`, is next. It gets the free pool where it
will probably end first. Pools that differ by less than a quarter count as equally quick, and then the one
with most free slots is taken. There are three deviations:

* A ticket that needs several slots, or more tokens of a shared context than are free, reserves the pool.
  Others pass it only if they do not delay it (`admission.pool_reservation`). No ticket passes one that waits
  for a single slot.
* A ticket may be served at a pool whose cache holds more of its prompt, or wait a moment for that pool
  (`admission.warmth`).
* A ticket for which no pool has enough slots is chosen, too, so that the scheduler can refuse it.

This module never awaits and changes no queue. It begins reservations, and notes how many slots they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slotgate.admission.demand import Demand
from slotgate.admission.guesses import Guesses
from slotgate.admission.pool import SlotPool
from slotgate.admission.pool_reservation import Reach, reach
from slotgate.admission.queue_bounds import QueueLimits
from slotgate.admission.queues import ModelQueue, PoolQueue
from slotgate.admission.ticket import Ticket
from slotgate.admission.warmth import WORTH_A_WAIT_BYTES, Patience, gain_bytes, warmer_queues

__all__ = ["Selection"]

_EQUALLY_QUICK = 1.25
"""Guesses are not more exact than this factor, and load should spread over backends of one speed."""


class Selection:
    def __init__(
        self,
        model_queues: Mapping[str, ModelQueue],
        guesses: Guesses,
        limits: Callable[[], QueueLimits],
    ) -> None:
        """`limits` returns the scheduler's limits, which a reload can change."""
        self.patience = Patience()
        self._model_queues = model_queues
        self._guesses = guesses
        self._limits = limits

    def first(self, pool_queue: PoolQueue, now: float) -> Ticket | None:
        """Return the next ticket of this pool. It fits, or it must be refused because no pool is wide enough.

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

    def quickest(self, demand: Demand, pool_queues: Iterable[PoolQueue]) -> PoolQueue | None:
        """Return the free pool where this demand will probably be met first, or None if no pool is free."""
        free = [
            pool_queue
            for pool_queue in pool_queues
            if pool_queue.pool.admitting and pool_queue.pool.fits(demand)
        ]
        if len(free) < 2:
            return free[0] if free else None
        seconds = [self._expected_s(demand, pool_queue.pool) for pool_queue in free]
        limit = min(seconds) * _EQUALLY_QUICK
        quick = [pool_queue for pool_queue, s in zip(free, seconds, strict=True) if s <= limit]
        return max(quick, key=lambda pool_queue: pool_queue.pool.free)

    def best(self, ticket: Ticket, pool_queue: PoolQueue, now: float) -> PoolQueue | None:
        """Return the warmest or quickest pool queue at which this queue's next ticket is next.

        Returns None if the ticket waits for a warm pool.
        """
        pool_queues = self._model_queues[ticket.demand.model].pool_queues
        if len(pool_queues) == 1:
            return pool_queue
        warmer = warmer_queues(ticket, pool_queue, pool_queues)
        if not warmer:
            as_warm = [other for other in pool_queues if gain_bytes(ticket, pool_queue, other) >= 0]
            quickest = self.quickest(ticket.demand, as_warm)
            if quickest is None or quickest is pool_queue or self.first(quickest, now) is not ticket:
                return pool_queue
            return quickest
        for other in warmer:
            if other.pool.fits(ticket.demand) and self.first(other, now) is ticket:
                return other
        worth_it = gain_bytes(ticket, pool_queue, warmer[0]) >= WORTH_A_WAIT_BYTES
        waits = (
            worth_it
            and pool_queue.waits_alone()
            and self.patience.lasts(ticket, now, self._limits().affinity_max_wait_s)
        )
        return None if waits else pool_queue

    def still_reachable(self, pool_queue: PoolQueue, ticket: Ticket) -> bool:
        """Return True if the ticket can still get its slots from this pool, which it has reserved."""
        pool = pool_queue.pool
        stands_here = pool_queue in self._model_queues[ticket.demand.model].pool_queues
        return stands_here and pool.admitting and pool.width_of(ticket.demand) <= pool.total

    def _expected_s(self, demand: Demand, pool: SlotPool) -> float:
        """Return the seconds that a request will probably take at a pool; 0 for an untried pool."""
        return self._guesses.at(demand, pool.name) if self._guesses.has_seen(demand, pool.name) else 0.0

    def _reach(self, pool: SlotPool, ticket: Ticket, now: float) -> Reach | None:
        """Return when the pool will have room for a ticket; None if that is after the ticket's timeout."""
        expected = reach(pool, ticket.demand, now)
        due_at = self._model_queues[ticket.demand.model].due_at(ticket, self._limits())
        return None if expected is None or expected.at > due_at else expected


def _passes(ticket: Ticket, width: int, reserved: Reach, now: float) -> bool:
    """Return True if a ticket does not delay the wide ticket that the pool is reserved for."""
    return width <= reserved.spare or now + ticket.guess / ticket.demand.width < reserved.at
