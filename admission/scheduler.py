"""The scheduler decides which ticket gets which slot, synchronously and over plain data.

A `ModelQueue` holds the tickets of one model, and a `PoolQueue` is one pool with the order of the tickets
that wait for it. A ticket stands in every pool queue that serves its model. A freed slot goes to the first
ticket in the order of its pool queue that fits. After every call these invariants hold:

I1  A pool never has more live leases, quarantined and foreign slots than `total`, unless it shrank.
I2  No slot idles while a ticket that may have it waits, except slots that are held for a wide ticket, and
    a slot whose only candidate declines it to wait for a warm pool.
I3  Tickets of one tenant, model and kind (priority, width, size) are served in the order of arrival.
I4  Every ticket is settled exactly once, and every grant is released exactly once.
I5  Withdrawal and grant cost the same with ten thousand tickets waiting as with ten.

Tickets are ordered by `admission.fair_order`. If the first ticket needs several slots, or more tokens of a
shared context than are free, it reserves the pool (`admission.pool_reservation`). If it waits for a single
slot, no later ticket passes it.

`admission.selection` chooses the ticket, `admission.lease_accounts` charges for it. A check and the change
that follows from it are one step, because nothing here awaits. Times come from `clock`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from slotgate.admission.demand import Demand, Priority
from slotgate.admission.errors import Refusal, Refused
from slotgate.admission.guesses import UNKNOWN_S, Guesses
from slotgate.admission.lease import Outcome
from slotgate.admission.lease_accounts import LeaseAccounts
from slotgate.admission.pool import SlotPool
from slotgate.admission.queue_bounds import NoRoom, QueueLimits, WaitingCounts
from slotgate.admission.queues import ModelQueue, PoolQueue
from slotgate.admission.routing import reroute, served_models
from slotgate.admission.selection import Selection
from slotgate.admission.ticket import Ticket

__all__ = ["QueueStatus", "Scheduler"]


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
        self._on_dispatch = on_dispatch
        self._clock = clock
        self._seq = itertools.count(1)
        self._model_queues: dict[str, ModelQueue] = {}
        self._pool_queues: dict[SlotPool, PoolQueue] = {}
        self._weights: dict[str, float] = {}
        self._waiting = WaitingCounts()
        self._guesses = guesses or Guesses()
        self._accounts = LeaseAccounts(self._pool_queues, self._guesses, clock, self._released)
        self._selection = Selection(self._model_queues, self._guesses, lambda: self.limits)
        self._to_look_at: list[PoolQueue] = []
        """Pools whose reservation has ended since they were last looked at."""

    def __repr__(self) -> str:
        return f"<Scheduler {self.depth} waiting, {self.leases} leases, {self.granted} granted>"

    # -- configuration

    def route(self, routes: Mapping[str, Iterable[SlotPool]]) -> None:
        """Set which pools serve which model. Tickets of a model without a pool are refused.

        Call it also after a change of a pool's `admitting` or `loading_until`. After a change of its `total`,
        `dispatch` is enough.
        """
        served = served_models(routes)
        gone = [model for model in self._model_queues if model not in served]
        self._refuse_all((self._model_queues[model] for model in gone), Refusal.NO_BACKEND)
        for model in gone:
            del self._model_queues[model]
        reroute(served, self._model_queues, self._pool_queues, self._weights, self._clock())
        self._accounts.regroup()
        self.dispatch()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weight of each tenant by name. Other tenants have weight 1."""
        self._weights.clear()
        self._weights.update(weights)
        for order in {pool_queue.order for pool_queue in self._pool_queues.values()}:
            order.reweigh()

    def drain(self) -> None:
        """Refuse all new tickets, and those that wait for a slot. Running leases go on.

        Tickets that wait for their model to be loaded keep their places until `refuse_waiting`. So do pieces
        of a request that has begun, and its next pieces are let in.
        """
        self.draining = True
        now = self._clock()
        for_a_slot = [queue for queue in self._waited_for() if not queue.clock.stands(now)]
        self._refuse_all(for_a_slot, Refusal.DRAINING, but_begun=True)

    def refuse_waiting(self) -> None:
        """Refuse all tickets that still wait, because the gateway ends."""
        self._refuse_all(self._waited_for(), Refusal.DRAINING)

    # -- tickets

    def submit(
        self, demand: Demand, on_settled: Callable[[], None], *, before: Ticket | None = None
    ) -> Ticket:
        """Take a place in the queue. The ticket may be granted already when this returns.

        `before` is the request's first ticket if it is tried again: it keeps its place in the order of
        arrival, and the bounds of queue and tenant do not turn it away, because it was inside all the time.
        Nor do they turn away the next piece of a request that has begun.
        Raises `Refused` if the queue is full, or if no backend could ever serve the demand.
        """
        model_queue = self._admit(demand, is_inside=before is not None)
        now = self._clock()
        seq = next(self._seq) if before is None else before.seq
        ticket = Ticket(demand, seq=seq, enqueued_at=now, on_settled=on_settled)
        ticket.counts_from = model_queue.clock.time(now)
        ticket.guess = self._guesses.of(demand) * demand.width
        try:
            self._place(model_queue, ticket, now)
            if ticket.queued and before is None and not demand.keeps_place:
                self._keep_bounds(model_queue, ticket)
        except Refused:
            raise
        except BaseException:
            self._disown(ticket)
            raise
        return ticket

    def _place(self, model_queue: ModelQueue, ticket: Ticket, now: float) -> None:
        """Grant a new ticket, or let it wait."""
        demand = ticket.demand
        if not self._waiting and not demand.warmth:
            chosen = self._selection.quickest(demand, model_queue.pool_queues)
            if chosen is not None:
                charge = self._accounts.charge(chosen, demand, contested=False)
                ticket.grant(self._accounts.lease(chosen.pool, demand, charge))
                self._on_dispatch()
                return
        is_first = model_queue.join(ticket, now)
        self._waiting.add(demand)
        if is_first or self._selection.patience:
            self._dispatch_at(model_queue.open_pools)
        else:
            self._on_dispatch()

    def withdraw(self, ticket: Ticket) -> None:
        """Take out the ticket of an owner that no longer waits. A settled ticket stays as it is."""
        if ticket.queued:
            model_queue = self._model_queues[ticket.demand.model]
            was_first = model_queue.flow(ticket.demand).head is ticket
            self._take_out(model_queue, ticket)
            ticket.withdraw(None)
            self._dispatch_at(model_queue.open_pools if was_first or self._selection.patience else ())

    def dispatch(self) -> None:
        """Grant every ticket that can be granted now, at any pool."""
        self._dispatch_at(self._pool_queues.values())

    def _dispatch_at(self, pool_queues: Iterable[PoolQueue]) -> None:
        """Grant every ticket that can be granted now at these pools. No other pool has changed."""
        now = self._clock()
        looked_at = [*pool_queues]
        while looked_at and self._waiting:
            for pool_queue in looked_at:
                if pool_queue.reservation.ticket is not None:
                    self._review(pool_queue, pool_queue.reservation.ticket, now)
            while self._waiting and self._serve_one(looked_at, now):
                pass
            looked_at, self._to_look_at = self._to_look_at, []
        self._to_look_at.clear()
        self._on_dispatch()

    def tick(self) -> None:
        """Refuse tickets whose wait has timed out, and let reservations change their phase.

        Call it at `next_tick_at`. An early call does no harm.
        """
        now = self._clock()
        self._selection.patience.expire(now)
        for model_queue in self._model_queues.values():
            while model_queue.waiting:
                due_at, ticket = model_queue.next_to_time_out(self.limits)
                if now < due_at:
                    break
                self._refuse(model_queue, ticket, Refusal.QUEUE_TIMEOUT)
        self.dispatch()

    def next_tick_at(self) -> float | None:
        """Return the time at which `tick` has something to do, or None if it has nothing."""
        timeouts = [queue.next_to_time_out(self.limits)[0] for queue in self._waited_for()]
        changes = [pool_queue.reservation.next_change_at() for pool_queue in self._pool_queues.values()]
        changes.append(self._selection.patience.next_end_at())
        return min([*timeouts, *(at for at in changes if at is not None)], default=None)

    # -- questions

    @property
    def depth(self) -> int:
        """The number of waiting tickets."""
        return sum(len(model_queue.waiting) for model_queue in self._model_queues.values())

    @property
    def leases(self) -> int:
        """The number of live leases."""
        return self._accounts.by_tenant.total()

    @property
    def leases_by_tenant(self) -> dict[str, int]:
        return dict(self._accounts.by_tenant)

    @property
    def granted(self) -> int:
        """The number of leases granted until now."""
        return self._accounts.granted

    @property
    def slot_seconds(self) -> Mapping[str, float]:
        """Tenant -> slot time of ended leases, and of slots that were held for its wide tickets."""
        return self._accounts.slot_seconds

    def status(self) -> QueueStatus:
        now = self._clock()
        oldest = min((queue.oldest.enqueued_at for queue in self._waited_for()), default=now)
        return QueueStatus(self.depth, dict(self._waiting.tickets), now - oldest)

    def waiting_since(self) -> dict[str, float]:
        """Return model -> the time since which its oldest ticket waits."""
        queues = self._model_queues.items()
        return {model: queue.oldest.enqueued_at for model, queue in queues if queue.waiting}

    def admits(self, model: str) -> bool:
        """Return True if a pool of the model takes requests now."""
        return model in self._model_queues and self._model_queues[model].admits

    def estimate_wait_s(
        self, model: str, tenant: str = "", priority: Priority = Priority.INTERACTIVE
    ) -> float:
        """Estimate the seconds until a new ticket of this tenant would be served. Never 0."""
        guess = self._guesses.of(Demand(tenant, model))
        if (model_queue := self._model_queues.get(model)) is None:
            return guess
        return model_queue.expected_wait_of_next(tenant, priority, guess, self._clock()).seconds or guess

    def position(self, ticket: Ticket) -> tuple[int, float]:
        """Return the position of a queued ticket, 1 for the next, and the seconds that it will probably wait.

        Both are estimates, because other tickets come and go; see `admission.expected_wait`.
        """
        wait = self._model_queues[ticket.demand.model].expected_wait(ticket, self._clock())
        return wait.position, wait.seconds

    # -- checks of a new ticket

    def _admit(self, demand: Demand, *, is_inside: bool) -> ModelQueue:
        if self.draining and not demand.has_begun:
            raise self._refused(Refusal.DRAINING, "the gateway is shutting down", UNKNOWN_S)
        model_queue = self._model_queues.get(demand.model)
        if model_queue is None:
            raise self._refused(
                Refusal.NO_BACKEND, f"no backend serves the model {demand.model!r}", UNKNOWN_S
            )
        if model_queue.too_narrow_for(demand):
            detail = f"no backend of the model {demand.model!r} has {demand.width} slots"
            raise self._refused(Refusal.NO_BACKEND, detail, None)
        return model_queue

    def _keep_bounds(self, model_queue: ModelQueue, newcomer: Ticket) -> None:
        """Make room for a new ticket that has to wait. Raises `Refused` if it has to leave itself.

        See `admission.queue_bounds`.
        """
        try:
            leaving = self._waiting.too_many(newcomer, model_queue.waiting.values(), self.limits)
        except NoRoom as error:
            self._take_out(model_queue, newcomer)
            self.dispatch()
            wait_s = self._next_wait_s(newcomer.demand)
            raise self._refused(Refusal.QUEUE_FULL, str(error), wait_s) from error
        if leaving:
            for ticket in leaving:
                self._refuse(model_queue, ticket, Refusal.QUEUE_FULL)
            self.dispatch()

    def _next_wait_s(self, demand: Demand) -> float:
        return self.estimate_wait_s(demand.model, demand.tenant, demand.priority)

    def _refused(self, refusal: Refusal, detail: str, retry_after_s: float | None) -> Refused:
        self.refused[refusal] += 1
        return Refused(refusal, detail, retry_after_s)

    # -- granting

    def _review(self, pool_queue: PoolQueue, ticket: Ticket, now: float) -> None:
        """Charge for slots that were held idle. End a reservation that cannot be fulfilled here."""
        self._accounts.charge_held(pool_queue, now)
        if not self._selection.still_reachable(pool_queue, ticket):
            pool_queue.reservation.end()

    def _serve_one(self, pool_queues: Iterable[PoolQueue], now: float) -> bool:
        """Settle one ticket, at the pool with most free slots that can. Return False if none can."""
        if len(self._pool_queues) > 1:
            pool_queues = sorted(pool_queues, key=lambda pool_queue: -pool_queue.pool.free)
        return any(self._serve(pool_queue, now) for pool_queue in pool_queues)

    def _serve(self, pool_queue: PoolQueue, now: float) -> bool:
        """Settle one ticket of this pool queue. Return False if none can be settled now."""
        ticket = self._selection.first(pool_queue, now)
        if ticket is None:
            return False
        if not pool_queue.pool.fits(ticket.demand):
            self._refuse(self._model_queues[ticket.demand.model], ticket, Refusal.NO_BACKEND)
            return True
        chosen = self._selection.best(ticket, pool_queue, now)
        if chosen is not None:
            self._grant(chosen, ticket)
        return chosen is not None

    def _grant(self, pool_queue: PoolQueue, ticket: Ticket) -> None:
        """Give the slots of a pool to a ticket that waits."""
        contested = pool_queue.waits(Priority(1 - ticket.demand.priority))
        charge = self._accounts.charge(pool_queue, ticket.demand, contested=contested)
        self._take_out(self._model_queues[ticket.demand.model], ticket)
        ticket.grant(self._accounts.lease(pool_queue.pool, ticket.demand, charge))

    def _released(self, pool: SlotPool) -> None:
        pool_queue = self._pool_queues.get(pool)
        self._dispatch_at(() if pool_queue is None else (pool_queue,))

    # -- ending waits

    def _disown(self, ticket: Ticket) -> None:
        """Release a ticket that its owner will never get, because `on_dispatch` raised.

        `on_dispatch` may raise again meanwhile. The caller raises the first error.
        """
        with suppress(Exception):
            self.withdraw(ticket)
            if ticket.lease is not None:
                ticket.lease.release(Outcome.UNUSED)

    def _take_out(self, model_queue: ModelQueue, ticket: Ticket) -> None:
        """Take a ticket out of all queues and counts of waiting tickets."""
        self._selection.patience.forget(ticket)
        for pool_queue in model_queue.pool_queues:
            if pool_queue.reservation.ticket is ticket:
                self._accounts.charge_held(pool_queue, self._clock())
                self._to_look_at.append(pool_queue)
        model_queue.leave(ticket, self._clock())
        self._waiting.remove(ticket.demand)

    def _refuse(self, model_queue: ModelQueue, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        self._take_out(model_queue, ticket)
        ticket.withdraw(refusal)

    def _refuse_all(self, queues: Iterable[ModelQueue], refusal: Refusal, *, but_begun: bool = False) -> None:
        for model_queue in queues:
            for ticket in list(model_queue.waiting.values()):
                if not (but_begun and ticket.demand.has_begun):
                    self._refuse(model_queue, ticket, refusal)

    def _waited_for(self) -> list[ModelQueue]:
        return [model_queue for model_queue in self._model_queues.values() if model_queue.waiting]
