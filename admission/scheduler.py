"""The scheduler: it decides which ticket gets which slot, synchronously and over plain data.

A `ModelQueue` holds the tickets of one model, and a `PoolQueue` is one pool with the order of the tickets
that wait for it. A ticket stands in every pool queue that serves its model. A freed slot goes to the first
ticket in the order of its pool queue that fits. After every call these invariants hold:

I1  A pool never has more live leases, quarantined and foreign slots than `total`, unless it shrank.
I2  No slot idles while a ticket that may have it waits, except slots that are held for a wide ticket, and
    a slot that its only candidate declines to wait for a warm pool.
I3  Tickets of one tenant, model and kind (priority, width, size) are served in the order of arrival.
I4  Every ticket is settled exactly once, and every grant is released exactly once.
I5  Withdrawal and grant cost the same with ten thousand tickets waiting as with ten.

The order is that of `admission.fair_order`. If the first ticket needs more slots, or more tokens of a shared
context, than there are, it reserves the pool (`admission.pool_reservation`). If it only misses its one slot,
no later ticket passes it.

A check and the change that follows from it are one step, because nothing here awaits. Times come from
`clock`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.errors import Refusal, Refused
from slotgate.admission.guesses import UNKNOWN_S, Guesses
from slotgate.admission.lease import Lease, Outcome
from slotgate.admission.pool import SlotPool
from slotgate.admission.pool_reservation import Reach, reach
from slotgate.admission.queue_bounds import make_room
from slotgate.admission.queues import ModelQueue, PoolQueue, connect
from slotgate.admission.slot_time import Charge
from slotgate.admission.ticket import Ticket
from slotgate.admission.warmth import WORTH_A_WAIT_BYTES, Patience, gain_bytes, warmer_queues

__all__ = ["QueueLimits", "QueueStatus", "Scheduler"]


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


@dataclass(frozen=True, slots=True)
class QueueStatus:
    depth: int
    by_tenant: dict[str, int]
    oldest_s: float
    """Seconds since the oldest waiting ticket came."""


class Scheduler:
    def __init__(
        self,
        limits: QueueLimits,
        clock: Callable[[], float],
        on_dispatch: Callable[[], None] = lambda: None,
        guesses: Guesses | None = None,
    ) -> None:
        """`on_dispatch` is called after every change, because `next_tick_at` may have moved.

        If it raises, the error goes up through the call that made the change.
        """
        self.limits = limits
        self.draining = False
        self.refused: Counter[Refusal] = Counter()
        self.granted = 0
        self.slot_seconds: defaultdict[str, float] = defaultdict(float)
        """Slot time by tenant, of leases that have ended."""
        self._on_dispatch = on_dispatch
        self._clock = clock
        self._seq = itertools.count(1)
        self._model_queues: dict[str, ModelQueue] = {}
        self._pool_queues: dict[SlotPool, PoolQueue] = {}
        self._weights: dict[str, float] = {}
        self._waiting_by_tenant: Counter[str] = Counter()
        self._bytes_by_tenant: Counter[str] = Counter()
        """Bytes of the bodies that wait, by tenant."""
        self._leases_by_tenant: Counter[str] = Counter()
        self._max_concurrent: Mapping[str, int] = {}
        self._patience = Patience()
        self._guesses = guesses or Guesses()
        self._to_look_at: list[PoolQueue] = []
        """Pools whose reservation has ended since the last look at them."""
        self._charges: dict[Charge, SlotPool] = {}
        """The charges of leases whose slots are not all known to be idle yet."""

    def __repr__(self) -> str:
        return f"<Scheduler {self.depth} waiting, {self.leases} leases, {self.granted} granted>"

    # -- configuration

    def route(self, routes: Mapping[str, Iterable[SlotPool]]) -> None:
        """Set which pools serve which model. Tickets of a model without a pool are refused.

        To be called after every change of a pool's `admitting` or `loading_until`, too; after a change of its
        `total`, `dispatch` will do.
        """
        now = self._clock()
        pools = {model: tuple(dict.fromkeys(served)) for model, served in routes.items() if served}
        pools = {model: served for model, served in pools.items() if served}
        for model in [model for model in self._model_queues if model not in pools]:
            self._refuse_all(self._model_queues[model], Refusal.NO_BACKEND)
            del self._model_queues[model]
        self._pool_queues = connect(pools, self._pool_queues, self._weights)
        for model, served in pools.items():
            model_queue = self._model_queues.setdefault(model, ModelQueue())
            model_queue.route_to((self._pool_queues[pool] for pool in served), now)
            for pool_queue in model_queue.pool_queues:
                pool_queue.model_queues.append(model_queue)
        for model_queue in self._model_queues.values():
            model_queue.settle_in(now)
        self._settle_charges(now)
        self.dispatch()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weight of each tenant by name. Other tenants have weight 1."""
        self._weights.clear()
        self._weights.update(weights)
        for order in {pool_queue.order for pool_queue in self._pool_queues.values()}:
            order.reweigh()

    def set_concurrency(self, max_concurrent: Mapping[str, int]) -> None:
        """Set how many requests each tenant may have in the gateway. Other tenants have no limit."""
        self._max_concurrent = max_concurrent

    def drain(self) -> None:
        """Refuse all waiting tickets and all new ones. Running leases go on."""
        self.draining = True
        for model_queue in self._model_queues.values():
            self._refuse_all(model_queue, Refusal.DRAINING)

    # -- tickets

    def submit(self, demand: Demand, on_settled: Callable[[], None]) -> Ticket:
        """Take a place in the queue. The ticket may be granted already when this returns.

        Raises `Refused` if the queue is full, or if no backend could ever serve the demand.
        """
        model_queue = self._admit(demand)
        now = self._clock()
        ticket = Ticket(demand, seq=next(self._seq), enqueued_at=now, on_settled=on_settled)
        ticket.counts_from = model_queue.clock.time(now)
        ticket.guess = self._guesses.of(demand) * demand.width
        if not self._waiting_by_tenant and not demand.warmth:
            chosen = model_queue.freest(demand)
            if chosen is not None:
                self._lease(chosen, ticket)
                self._on_dispatch_or_disown(ticket)
                return ticket
        is_first = model_queue.join(ticket, now)
        self._bytes_by_tenant[demand.tenant] += demand.body_bytes
        self._waiting_by_tenant[demand.tenant] += 1
        try:
            if is_first or self._patience:
                self._dispatch_at(model_queue.open_pools)
            else:
                self._on_dispatch()
            if ticket.queued:
                self._keep_bounds(model_queue, ticket)
        except Refused:
            raise
        except BaseException:
            self._disown(ticket)
            raise
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take the ticket of an owner that no longer waits out of the queue.

        A settled ticket stays as it is.
        """
        if ticket.queued:
            model_queue = self._model_queues[ticket.demand.model]
            was_first = model_queue.flow(ticket.demand).head is ticket
            self._take_out(model_queue, ticket)
            ticket.withdraw(None)
            self._dispatch_at(model_queue.open_pools if was_first or self._patience else ())

    def dispatch(self) -> None:
        """Grant every ticket that can be granted now, at any pool."""
        self._dispatch_at(self._pool_queues.values())

    def _dispatch_at(self, pool_queues: Iterable[PoolQueue]) -> None:
        """Grant every ticket that can be granted now at these pools. At the others nothing has changed."""
        now = self._clock()
        looked_at = [*pool_queues]
        while looked_at and self._waiting_by_tenant:
            for pool_queue in looked_at:
                if pool_queue.reservation.ticket is not None:
                    self._review(pool_queue, pool_queue.reservation.ticket, now)
            while self._waiting_by_tenant and self._serve_one(looked_at, now):
                pass
            looked_at, self._to_look_at = self._to_look_at, []
        self._to_look_at.clear()
        self._on_dispatch()

    def tick(self) -> None:
        """End the waits that are over, and let reservations change their phase.

        To be called at `next_tick_at`. Too early does no harm.
        """
        now = self._clock()
        self._patience.expire(now)
        for model_queue in self._model_queues.values():
            while model_queue.waiting:
                ticket = model_queue.oldest
                if now < self._due_at(model_queue, ticket):
                    break
                self._refuse(model_queue, ticket, Refusal.QUEUE_TIMEOUT)
        self.dispatch()

    def next_tick_at(self) -> float | None:
        """Return the time at which `tick` has something to do, or None if it has nothing."""
        timeouts = [self._due_at(queue, queue.oldest) for queue in self._waited_for()]
        changes = [pool_queue.reservation.next_change_at() for pool_queue in self._pool_queues.values()]
        changes.append(self._patience.next_end_at())
        return min([*timeouts, *(at for at in changes if at is not None)], default=None)

    # -- questions

    @property
    def depth(self) -> int:
        """The number of waiting tickets."""
        return sum(len(model_queue.waiting) for model_queue in self._model_queues.values())

    @property
    def leases(self) -> int:
        """The number of live leases."""
        return sum(self._leases_by_tenant.values())

    @property
    def leases_by_tenant(self) -> dict[str, int]:
        return dict(self._leases_by_tenant)

    def status(self) -> QueueStatus:
        oldest = min((queue.oldest.enqueued_at for queue in self._waited_for()), default=None)
        oldest_s = 0.0 if oldest is None else self._clock() - oldest
        return QueueStatus(self.depth, dict(self._waiting_by_tenant), oldest_s)

    def waiting_since(self) -> dict[str, float]:
        """Return model -> the time since which its oldest ticket waits."""
        return {
            model: model_queue.oldest.enqueued_at
            for model, model_queue in self._model_queues.items()
            if model_queue.waiting
        }

    def admits(self, model: str) -> bool:
        """Return True if a pool of the model takes requests now."""
        model_queue = self._model_queues.get(model)
        return model_queue is not None and model_queue.admits

    def estimate_wait_s(
        self, model: str, tenant: str = "", priority: Priority = Priority.INTERACTIVE
    ) -> float:
        """Estimate the seconds until a new ticket of this tenant would be served. Never 0."""
        model_queue = self._model_queues.get(model)
        guess = self._guesses.of(Demand(tenant, model))
        if model_queue is None:
            return guess
        wait = model_queue.expected_wait_of_next(tenant, priority, guess, self._clock())
        return wait.seconds or guess

    def _wait_after(self, demand: Demand) -> float:
        return self.estimate_wait_s(demand.model, demand.tenant, demand.priority)

    def position(self, ticket: Ticket) -> tuple[int, float]:
        """Return the position of a queued ticket, 1 for the next, and the seconds that it will probably wait.

        Both are estimates, because other tickets come and go; see `admission.expected_wait`.
        """
        wait = self._model_queues[ticket.demand.model].expected_wait(ticket, self._clock())
        return wait.position, wait.seconds

    # -- checks of a new ticket

    def _admit(self, demand: Demand) -> ModelQueue:
        if self.draining:
            raise self._refused(Refusal.DRAINING, "the gateway is shutting down", UNKNOWN_S)
        model_queue = self._model_queues.get(demand.model)
        if model_queue is None:
            detail = f"no backend serves the model {demand.model!r}"
            raise self._refused(Refusal.NO_BACKEND, detail, UNKNOWN_S)
        if model_queue.too_narrow_for(demand):
            detail = f"no backend of the model {demand.model!r} has {demand.width} slots"
            raise self._refused(Refusal.NO_BACKEND, detail, None)
        limit = self._max_concurrent.get(demand.tenant)
        inside = self._leases_by_tenant[demand.tenant] + self._waiting_by_tenant[demand.tenant]
        if limit is not None and inside >= limit:
            detail = f"this tenant may have {limit} requests at once"
            raise self._refused(
                Refusal.TENANT_CONCURRENCY,
                detail,
                self._wait_after(demand),
            )
        return model_queue

    def _keep_bounds(self, model_queue: ModelQueue, newcomer: Ticket) -> None:
        """Make room for a new ticket that has to wait. Raises `Refused` if it has to leave itself.

        See `admission.queue_bounds`.
        """
        limits, tenant = self.limits, newcomer.demand.tenant
        if self._waiting_by_tenant[tenant] > limits.max_queue_per_tenant:
            self._turn_away(
                model_queue, newcomer, f"{limits.max_queue_per_tenant} requests of this key already wait"
            )
        if len(model_queue.waiting) > limits.max_queue:
            leaving = make_room(
                newcomer,
                lambda: reversed(model_queue.waiting.values()),
                Counter(ticket.demand.tenant for ticket in model_queue.waiting.values()),
                limits.max_queue,
            )
            if leaving is None:
                self._turn_away(
                    model_queue, newcomer, f"{limits.max_queue} requests already wait for this model"
                )
            self._refuse_newest(leaving)
        if newcomer.queued and self._bytes_by_tenant.total() > limits.max_queue_bytes:
            leaving = make_room(
                newcomer,
                self._newest_first,
                self._bytes_by_tenant,
                limits.max_queue_bytes,
                lambda ticket: ticket.demand.body_bytes,
            )
            if leaving is None:
                detail = "the requests that wait already hold as much memory as they may"
                self._turn_away(model_queue, newcomer, detail)
            self._refuse_newest(leaving)

    def _turn_away(self, model_queue: ModelQueue, newcomer: Ticket, detail: str) -> NoReturn:
        self._take_out(model_queue, newcomer)
        self.dispatch()
        demand = newcomer.demand
        raise self._refused(Refusal.QUEUE_FULL, detail, self._wait_after(demand))

    def _refuse_newest(self, leaving: Iterable[Ticket]) -> None:
        for ticket in leaving:
            if ticket.queued:
                self._refuse(self._model_queues[ticket.demand.model], ticket, Refusal.QUEUE_FULL)
        self.dispatch()

    def _newest_first(self) -> list[Ticket]:
        waiting = (ticket for queue in self._waited_for() for ticket in queue.waiting.values())
        return sorted(waiting, key=lambda ticket: -ticket.seq)

    def _refused(self, refusal: Refusal, detail: str, retry_after_s: float | None) -> Refused:
        self.refused[refusal] += 1
        return Refused(refusal, detail, retry_after_s)

    # -- choosing a ticket and a pool

    def _review(self, pool_queue: PoolQueue, ticket: Ticket, now: float) -> None:
        """Charge for slots that were held idle, and end a reservation that cannot be fulfilled here."""
        self._charge_held(pool_queue, now)
        stands_here = pool_queue in self._model_queues[ticket.demand.model].pool_queues
        pool = pool_queue.pool
        if not (stands_here and pool.admitting and pool.width_of(ticket.demand) <= pool.total):
            pool_queue.reservation.end()

    def _charge_held(self, pool_queue: PoolQueue, now: float) -> None:
        """Let the reservation change its phase, and charge its tenant for the slots that it held idle."""
        reservation = pool_queue.reservation
        slot_seconds = reservation.advance(now)
        if slot_seconds and reservation.ticket is not None:
            demand = reservation.ticket.demand
            self.slot_seconds[demand.tenant] += slot_seconds
            pool_queue.order.charge_held(demand.tenant, demand.priority, slot_seconds)

    def _serve_one(self, pool_queues: Iterable[PoolQueue], now: float) -> bool:
        """Settle one ticket, at the least busy pool where this is possible. Return False if there is none."""
        if len(self._pool_queues) > 1:
            pool_queues = sorted(pool_queues, key=lambda pool_queue: -pool_queue.pool.free)
        return any(self._serve(pool_queue, now) for pool_queue in pool_queues)

    def _serve(self, pool_queue: PoolQueue, now: float) -> bool:
        """Settle one ticket of this pool queue. Return False if none can be settled now."""
        ticket = self._first(pool_queue, now)
        if ticket is None:
            return False
        if not pool_queue.pool.fits(ticket.demand):
            self._refuse(self._model_queues[ticket.demand.model], ticket, Refusal.NO_BACKEND)
            return True
        chosen = self._warmest(ticket, pool_queue, now)
        if chosen is None:
            return False
        self._grant(chosen, ticket)
        return True

    def _warmest(self, ticket: Ticket, pool_queue: PoolQueue, now: float) -> PoolQueue | None:
        """Return the warmest pool queue at which this queue's next ticket is next, or None if it waits.

        See `admission.warmth`.
        """
        warmer = warmer_queues(ticket, pool_queue, self._model_queues[ticket.demand.model].pool_queues)
        if not warmer:
            return pool_queue
        for other in warmer:
            if other.pool.fits(ticket.demand) and self._first(other, now) is ticket:
                return other
        worth_it = gain_bytes(ticket, pool_queue, warmer[0]) >= WORTH_A_WAIT_BYTES
        if worth_it and pool_queue.waits_alone():
            max_wait_s = self.limits.affinity_max_wait_s
            return None if self._patience.lasts(ticket, now, max_wait_s) else pool_queue
        return pool_queue

    def _first(self, pool_queue: PoolQueue, now: float) -> Ticket | None:
        """Return the ticket to settle next at this pool: it fits, or no pool will ever be wide enough.

        Reserves the pool for a wide ticket that comes first and does not fit.
        """
        pool, reservation = pool_queue.pool, pool_queue.reservation
        if not pool.admitting:
            return None
        reservation.idle_slots = 0
        reach = None
        if reservation.ticket is not None:
            if pool.fits(reservation.ticket.demand):
                return reservation.ticket
            if reservation.holds(now):
                reach = self._reach(pool, reservation.ticket, now)
        for _, _, _, flow in pool_queue.heads(now):
            ticket, model_queue = flow.head, flow.model_queue
            width = pool.width_of(ticket.demand)
            if model_queue.too_narrow_for(ticket.demand):
                return ticket
            if pool.fits(ticket.demand):
                if reach is None or width <= reach.spare or now + self._expected_s(ticket) < reach.at:
                    return ticket
                reservation.idle_slots = pool.free
            elif width == 1 and pool.has_room(ticket.demand):
                break
            elif width <= pool.total and reservation.ticket is None and not model_queue.reserved_for(ticket):
                reach = self._reach(pool, ticket, now)
                if reach is not None:
                    reservation.begin(ticket, now, reach.at)
        return None

    def _reach(self, pool: SlotPool, ticket: Ticket, now: float) -> Reach | None:
        """Return when the pool will have the width of a ticket; None if not before its wait is over."""
        expected = reach(pool, ticket.demand, now)
        if expected is None or expected.at > self._due_at(self._model_queues[ticket.demand.model], ticket):
            return None
        return expected

    def _expected_s(self, ticket: Ticket) -> float:
        return ticket.guess / ticket.demand.width

    # -- settling tickets

    def _grant(self, pool_queue: PoolQueue, ticket: Ticket) -> None:
        """Give the slots of a pool to a ticket that waits."""
        contested = pool_queue.waits(Priority(1 - ticket.demand.priority))
        self._lease(pool_queue, ticket, contested=contested, waits=True)

    def _lease(
        self, pool_queue: PoolQueue, ticket: Ticket, *, contested: bool = False, waits: bool = False
    ) -> None:
        demand, pool = ticket.demand, pool_queue.pool
        width = pool.width_of(demand)
        expected_s = self._guesses.of(demand)
        charge = pool_queue.order.charge(
            demand.tenant,
            demand.priority,
            width,
            expected_s * width,
            self._clock(),
            contested=contested,
        )
        self._charges[charge] = pool
        if waits:
            self._take_out(self._model_queues[demand.model], ticket)
        lease = Lease(
            demand,
            pool_name=pool.name,
            width=width,
            clock=self._clock,
            expected_s=expected_s,
            on_release=partial(self._released, pool, charge),
            on_idle=partial(self._slots_idle, charge, demand, width),
        )
        pool.take(lease)
        self.granted += 1
        self._leases_by_tenant[demand.tenant] += 1
        ticket.grant(lease)

    def _released(self, pool: SlotPool, charge: Charge, lease: Lease) -> None:
        pool.give_back(lease, self._clock())
        _count_down(self._leases_by_tenant, lease.demand.tenant)
        assert lease.outcome is not None
        if lease.outcome is Outcome.UNUSED:
            charge.cancel()
            self._close(charge)
        elif lease.outcome.verified or pool not in self._pool_queues or not pool.admitting:
            self._slots_idle(charge, lease.demand, lease.width, lease.width)
        pool_queue = self._pool_queues.get(pool)
        self._dispatch_at(() if pool_queue is None else (pool_queue,))

    def _slots_idle(self, charge: Charge, demand: Demand, width: int, slots: int) -> None:
        """Slots of a lease are idle again. Their tenant pays no longer for them."""
        if charge.slots:
            charge.give_back(slots, self._clock())
            if not charge.slots:
                self._guesses.learn(demand, charge.held / width)
                self._close(charge)

    def _close(self, charge: Charge) -> None:
        del self._charges[charge]
        self.slot_seconds[charge.account.tenant] += charge.held
        charge.account.order.ended(charge)

    def _settle_charges(self, now: float) -> None:
        """The pools have changed. A quarantined slot that no other request could get costs nothing more."""
        for charge, pool in list(self._charges.items()):
            pool_queue = self._pool_queues.get(pool)
            if pool_queue is not None:
                pool_queue.order.take_charge(charge)
            if pool_queue is None or not pool.admitting:
                for slot in pool.quarantine.slots:
                    if slot.lease is not None:
                        slot.lease.slots_idle(1)

    def _on_dispatch_or_disown(self, ticket: Ticket) -> None:
        try:
            self._on_dispatch()
        except BaseException:
            self._disown(ticket)
            raise

    def _disown(self, ticket: Ticket) -> None:
        """End a ticket that its owner will never get, because `on_dispatch` raised.

        It may raise again meanwhile. The caller raises the first error.
        """
        with suppress(Exception):
            self.withdraw(ticket)
            if ticket.lease is not None:
                ticket.lease.release(Outcome.UNUSED)

    def _take_out(self, model_queue: ModelQueue, ticket: Ticket) -> None:
        """Take a ticket out of all queues and counts of waiting tickets."""
        self._patience.forget(ticket)
        for pool_queue in model_queue.pool_queues:
            if pool_queue.reservation.ticket is ticket:
                self._charge_held(pool_queue, self._clock())
                self._to_look_at.append(pool_queue)
        model_queue.leave(ticket, self._clock())
        tenant = ticket.demand.tenant
        _count_down(self._waiting_by_tenant, tenant)
        self._bytes_by_tenant[tenant] -= ticket.demand.body_bytes
        if not self._waiting_by_tenant[tenant]:
            del self._bytes_by_tenant[tenant]

    def _refuse(self, model_queue: ModelQueue, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        self._take_out(model_queue, ticket)
        ticket.withdraw(refusal)

    def _refuse_all(self, model_queue: ModelQueue, refusal: Refusal) -> None:
        for ticket in list(model_queue.waiting.values()):
            self._refuse(model_queue, ticket, refusal)

    def _waited_for(self) -> list[ModelQueue]:
        return [model_queue for model_queue in self._model_queues.values() if model_queue.waiting]

    def _due_at(self, model_queue: ModelQueue, ticket: Ticket) -> float:
        """Return the time at which the wait of this ticket is over."""
        return model_queue.clock.when(ticket.counts_from + self.limits.queue_timeout_s)


def _count_down(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]
