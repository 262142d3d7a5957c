"""The admission queue: which ticket gets which slot, decided synchronously over plain data.

A `ModelQueue` holds the tickets of one model. A `PoolQueue` is one pool and the order of the tickets that
wait for it. A ticket waits in every pool queue that serves its model. A freed slot goes to the first ticket
in the order of its pool queue that fits. What holds after every call:

I1  A pool never has more live leases, quarantined and foreign slots than `total`, unless it shrank.
I2  No slot idles while a ticket that may have it waits, but for slots held for a wide ticket.
I3  Nobody overtakes within a tenant, a model and a kind (priority, width, size).
I4  Every ticket is settled exactly once; every grant is released exactly once.
I5  Withdrawal and grant cost the same with ten thousand tickets waiting as with ten.

The order is that of `admission.fair`. A ticket that comes first and needs more than there is, in slots or in
tokens of a shared context, reserves the pool (`admission.reservation`); one that comes first and only misses
its one slot lets nobody pass.

A check and the taking of what it found are one step: nothing here awaits. Times come from `clock`.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from slotgate.admission.demand import Demand
from slotgate.admission.errors import Refusal, Refused
from slotgate.admission.fair import Charge, Flow, Kind, Order, kind_of
from slotgate.admission.lease import Lease, Outcome
from slotgate.admission.pool import SlotPool, mean_service_s
from slotgate.admission.reservation import Reservation
from slotgate.admission.ticket import Ticket
from slotgate.admission.waiting_clock import WaitingClock

__all__ = ["QueueLimits", "QueueStatus", "Scheduler"]

_WORTH_A_WAIT_BYTES = 2048
"""A beginning of a prompt that is worth a moment: some hundred tokens."""
_UNKNOWN_SERVICE_S = 2.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_queue: int
    """Tickets that may wait for one model."""
    max_queue_per_tenant: int
    max_queue_bytes: int
    """Bytes of all waiting bodies together."""
    queue_timeout_s: float
    affinity_max_wait_s: float = 0.0
    """How long a ticket declines a cold slot while a warm pool is busy, if nobody else can use the slot."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    depth: int
    by_tenant: dict[str, int]
    oldest_s: float


@dataclass(frozen=True, slots=True, eq=False)
class PoolQueue:
    """A pool and those who wait for it."""

    pool: SlotPool
    order: Order
    reservation: Reservation = field(default_factory=Reservation)


class ModelQueue:
    """The tickets of one model and the pool_queues that they may pass."""

    __slots__ = ("_flows", "clock", "pool_queues", "waiting")

    def __init__(self) -> None:
        self.clock = WaitingClock()
        self.pool_queues: tuple[PoolQueue, ...] = ()
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        """All queued tickets in the order they came: deadlines are read off its front."""
        self._flows: dict[tuple[str, Kind], Flow] = {}

    @property
    def pools(self) -> list[SlotPool]:
        return [pool_queue.pool for pool_queue in self.pool_queues]

    @property
    def admits(self) -> bool:
        return any(pool_queue.pool.admitting for pool_queue in self.pool_queues)

    def lead_to(self, pool_queues: Iterable[PoolQueue], now: float) -> None:
        self.pool_queues = tuple(pool_queues)
        loading = [pool.loading_until for pool in self.pools if pool.loading_until is not None]
        self.clock.stand_still(now, max(loading) if loading and not self.admits else None)
        for flow in self._flows.values():
            flow.stand_in(self._orders)

    def too_narrow_for(self, demand: Demand) -> bool:
        """Whether nothing that serves the model, or will when it has loaded, has so many slots."""
        return all(pool.admitting and pool.total < demand.width for pool in self.pools)

    def reserved_for(self, ticket: Ticket) -> bool:
        return any(pool_queue.reservation.ticket is ticket for pool_queue in self.pool_queues)

    def flow(self, demand: Demand) -> Flow:
        return self._flows[_flow_of(demand)]

    def join(self, ticket: Ticket) -> None:
        self.waiting[ticket.seq] = ticket
        name = _flow_of(ticket.demand)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(ticket.demand)
        flow.join(ticket, self._orders)

    def leave(self, ticket: Ticket) -> None:
        del self.waiting[ticket.seq]
        flow = self.flow(ticket.demand)
        flow.leave(ticket)
        if not flow.tickets:
            del self._flows[_flow_of(ticket.demand)]

    @property
    def _orders(self) -> list[Order]:
        return [pool_queue.order for pool_queue in self.pool_queues]


def _flow_of(demand: Demand) -> tuple[str, Kind]:
    return demand.tenant, kind_of(demand)


class Scheduler:
    def __init__(self, limits: QueueLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.draining = False
        self.refused: Counter[Refusal] = Counter()
        self.granted = 0
        self.withdrawn = 0
        self.on_dispatch: Callable[[], None] = _nobody_waits
        """Called after every change: `next_tick_at` may have moved."""
        self._clock = clock
        self._seq = itertools.count(1)
        self._model_queues: dict[str, ModelQueue] = {}
        self._pool_queues: dict[SlotPool, PoolQueue] = {}
        self._weights: dict[str, float] = {}
        self._waiting_bytes = 0
        self._waiting_by_tenant: Counter[str] = Counter()
        self._leases_by_tenant: Counter[str] = Counter()
        self._max_concurrent: Mapping[str, int] = {}
        self._patient: set[Ticket] = set()
        """Those that decline a cold slot for now."""

    def __repr__(self) -> str:
        return f"<Scheduler {self.depth} waiting, {self.leases} leases, {self.granted} granted>"

    # -- what the outside sets

    def route(self, routes: Mapping[str, Iterable[SlotPool]]) -> None:
        """Which pools may serve which model. Tickets of a model that nobody serves any more are refused.

        Call it, or `dispatch`, after every change of a pool's `total` or `admitting`, too.
        """
        now = self._clock()
        pools = {model: tuple(dict.fromkeys(served)) for model, served in routes.items()}
        self._pool_queues = {
            pool: self._pool_queues.get(pool) or PoolQueue(pool, Order(self._weights))
            for pool in itertools.chain.from_iterable(pools.values())
        }
        for model in [model for model in self._model_queues if not pools.get(model)]:
            self._refuse_all(self._model_queues[model], Refusal.NO_BACKEND)
            del self._model_queues[model]
        for model, served in pools.items():
            if served:
                model_queue = self._model_queues.setdefault(model, ModelQueue())
                model_queue.lead_to((self._pool_queues[pool] for pool in served), now)
        self.dispatch()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Shares by tenant name; a tenant that is not named has weight 1."""
        self._weights.clear()
        self._weights.update(weights)

    def set_concurrency(self, max_concurrent: Mapping[str, int]) -> None:
        """How many requests each tenant may have in the gateway; a tenant that is not named has no limit."""
        self._max_concurrent = max_concurrent

    def drain(self) -> None:
        """Refuse what waits and whatever comes from now on; running leases go on."""
        self.draining = True
        for model_queue in self._model_queues.values():
            self._refuse_all(model_queue, Refusal.DRAINING)

    # -- a ticket's life

    def submit(self, demand: Demand, on_settled: Callable[[], None]) -> Ticket:
        """Take a place in the queue; the ticket may be granted already when this returns.

        Raises `Refused` when there is no place, or nothing could ever serve the demand.
        """
        model_queue = self._admit(demand)
        now = self._clock()
        ticket = Ticket(demand, seq=next(self._seq), enqueued_at=now, on_settled=on_settled)
        ticket.counts_from = model_queue.clock.time(now)
        model_queue.join(ticket)
        self._waiting_bytes += demand.body_bytes
        self._waiting_by_tenant[demand.tenant] += 1
        try:
            self.dispatch()
        except BaseException:
            self._disown(ticket)
            raise
        if ticket.queued and (crowded := self._crowded(model_queue, demand)):
            self._take_out(model_queue, ticket)
            self.dispatch()
            raise self._no(Refusal.QUEUE_FULL, crowded, self.estimate_wait_s(demand.model))
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """The owner no longer waits. Nothing happens to a ticket that is settled."""
        if ticket.queued:
            self.withdrawn += 1
            self._take_out(self._model_queues[ticket.demand.model], ticket)
            ticket.withdraw(None)
            self.dispatch()

    def dispatch(self) -> None:
        """Grant all that can be granted now."""
        now = self._clock()
        for pool_queue in self._pool_queues.values():
            if pool_queue.reservation.ticket is not None:
                self._review(pool_queue, pool_queue.reservation.ticket, now)
        while self._waiting_by_tenant and self._serve_one(now):
            pass
        self.on_dispatch()

    def tick(self) -> None:
        """Time has passed: end the waits that are over, let reservations change phase.

        Waits do not use up their time while nothing that serves the model admits and some of it loads.
        """
        now = self._clock()
        self._patient = {ticket for ticket in self._patient if now < (ticket.patient_until or 0)}
        for model_queue in self._model_queues.values():
            while model_queue.waiting:
                ticket = next(iter(model_queue.waiting.values()))
                if now < self._due_at(model_queue, ticket):
                    break
                self._refuse(model_queue, ticket, Refusal.QUEUE_TIMEOUT)
        self.dispatch()

    def next_tick_at(self) -> float | None:
        """When `tick` has something to do if nothing else happens."""
        times = [self._due_at(model_queue, ticket) for model_queue, ticket in self._oldest_tickets()]
        changes = (pool_queue.reservation.next_change_at() for pool_queue in self._pool_queues.values())
        times += [at for at in changes if at is not None]
        times += [ticket.patient_until for ticket in self._patient if ticket.patient_until is not None]
        return min(times, default=None)

    # -- questions

    @property
    def depth(self) -> int:
        return sum(len(model_queue.waiting) for model_queue in self._model_queues.values())

    @property
    def leases(self) -> int:
        """Live leases of all tenants."""
        return sum(self._leases_by_tenant.values())

    @property
    def leases_by_tenant(self) -> dict[str, int]:
        return dict(self._leases_by_tenant)

    def status(self) -> QueueStatus:
        oldest = min((ticket.enqueued_at for _, ticket in self._oldest_tickets()), default=None)
        oldest_s = 0.0 if oldest is None else self._clock() - oldest
        return QueueStatus(self.depth, dict(self._waiting_by_tenant), oldest_s)

    def waiting_since(self) -> dict[str, float]:
        """For every model that somebody waits for, since when the first of them does."""
        return {
            model: next(iter(model_queue.waiting.values())).enqueued_at
            for model, model_queue in self._model_queues.items()
            if model_queue.waiting
        }

    def widest(self, model: str) -> int:
        """The most slots that one request for this model could get; 0 if nothing serves it."""
        model_queue = self._model_queues.get(model)
        return max((pool.total for pool in model_queue.pools), default=0) if model_queue else 0

    def admits(self, model: str) -> bool:
        """Whether anything that serves the model takes requests now."""
        model_queue = self._model_queues.get(model)
        return model_queue is not None and model_queue.admits

    def estimate_wait_s(self, model: str) -> float:
        """Seconds until a ticket that came now would be served, from the observed service rate."""
        model_queue = self._model_queues.get(model)
        if model_queue is None:
            return _UNKNOWN_SERVICE_S
        service = mean_service_s(model_queue.pools) or _UNKNOWN_SERVICE_S
        slots = max(1, sum(pool.total for pool in model_queue.pools))
        return service * (len(model_queue.waiting) + 1) / slots

    def place(self, ticket: Ticket) -> tuple[int, float]:
        """The position of a queued ticket, 1 for the next, and the seconds that it will probably wait.

        An estimate: as the queue stands now, and at the pool where most is behind it. O(waiting tickets).
        """
        model_queue = self._model_queues[ticket.demand.model]
        flow = model_queue.flow(ticket.demand)
        position = 1 + min(
            (pool_queue.order.ahead(flow, ticket) for pool_queue in model_queue.pool_queues), default=0
        )
        service = mean_service_s(model_queue.pools) or _UNKNOWN_SERVICE_S
        return position, service * position / max(1, sum(pool.total for pool in model_queue.pools))

    # -- mechanism

    def _admit(self, demand: Demand) -> ModelQueue:
        if self.draining:
            raise self._no(Refusal.DRAINING, "the gateway is shutting down", _UNKNOWN_SERVICE_S)
        model_queue = self._model_queues.get(demand.model)
        if model_queue is None:
            detail = f"no backend serves the model {demand.model!r}"
            raise self._no(Refusal.NO_BACKEND, detail, _UNKNOWN_SERVICE_S)
        if model_queue.too_narrow_for(demand):
            detail = f"no backend of the model {demand.model!r} has {demand.width} slots"
            raise self._no(Refusal.NO_BACKEND, detail, None)
        limit = self._max_concurrent.get(demand.tenant)
        inside = self._leases_by_tenant[demand.tenant] + self._waiting_by_tenant[demand.tenant]
        if limit is not None and inside >= limit:
            detail = f"this tenant may have {limit} requests at once"
            raise self._no(Refusal.TENANT_CONCURRENCY, detail, self.estimate_wait_s(demand.model))
        return model_queue

    def _crowded(self, model_queue: ModelQueue, demand: Demand) -> str | None:
        """Which bound a ticket that has to wait breaks, itself counted in."""
        limits = self.limits
        if len(model_queue.waiting) > limits.max_queue:
            return f"{limits.max_queue} requests already wait for this model"
        if self._waiting_by_tenant[demand.tenant] > limits.max_queue_per_tenant:
            return f"{limits.max_queue_per_tenant} requests of this key already wait"
        if self._waiting_bytes > limits.max_queue_bytes:
            return "the requests that wait already hold as much memory as they may"
        return None

    def _no(self, refusal: Refusal, detail: str, retry_after_s: float | None) -> Refused:
        self.refused[refusal] += 1
        return Refused(refusal, detail, retry_after_s)

    def _review(self, pool_queue: PoolQueue, ticket: Ticket, now: float) -> None:
        """Give a reservation up if it can come to nothing here; else let it change phase."""
        stands_here = pool_queue in self._model_queues[ticket.demand.model].pool_queues
        pool = pool_queue.pool
        if not (stands_here and pool.admitting and pool.width_of(ticket.demand) <= pool.total):
            pool_queue.reservation.end()
        pool_queue.reservation.advance(now)

    def _serve_one(self, now: float) -> bool:
        """Settle one ticket, at the pool with most free slots where one can be: so a ticket goes where least
        is going on. False if there is none."""
        pool_queues: Iterable[PoolQueue] = self._pool_queues.values()
        if len(self._pool_queues) > 1:
            pool_queues = sorted(pool_queues, key=lambda pool_queue: -pool_queue.pool.free)
        return any(self._serve(pool_queue, now) for pool_queue in pool_queues)

    def _serve(self, pool_queue: PoolQueue, now: float) -> bool:
        """Settle one ticket at this pool_queue; False if none can be settled here now."""
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
        """Where a ticket that is next at this pool is served: at the warmest pool where it is next as well.

        None if it rather waits for a warm pool that is busy: for a moment, once, and only while nobody else
        could use the slot.
        """
        warmth = ticket.demand.warmth
        mine = warmth.get(pool_queue.pool.name, 0)
        others = [
            other for other in self._model_queues[ticket.demand.model].pool_queues if other.pool.admitting
        ]
        warmer = [other for other in others if warmth.get(other.pool.name, 0) > mine]
        if not warmer:
            return pool_queue
        warmer.sort(key=lambda other: (-warmth[other.pool.name], -other.pool.free))
        for other in warmer:
            if other.pool.fits(ticket.demand) and self._first(other, now) is ticket:
                return other
        worth_it = warmth[warmer[0].pool.name] - mine >= _WORTH_A_WAIT_BYTES
        if worth_it and pool_queue.order.waits_alone(ticket) and self._is_patient(ticket, now):
            return None
        return pool_queue

    def _is_patient(self, ticket: Ticket, now: float) -> bool:
        if ticket.patient_until is None:
            ticket.patient_until = now + self.limits.affinity_max_wait_s
            self._patient.add(ticket)
        return now < ticket.patient_until

    def _first(self, pool_queue: PoolQueue, now: float) -> Ticket | None:
        """The ticket to settle next at this pool_queue: it fits here, or it never will anywhere.

        The pool_queue is reserved for a wide ticket on the way.
        """
        pool, reserved_for = pool_queue.pool, pool_queue.reservation.ticket
        if reserved_for is not None and pool.admitting and pool.fits(reserved_for.demand):
            return reserved_for
        if pool_queue.reservation.holds or not pool.admitting:
            return None
        for ticket in pool_queue.order.heads():
            width, model_queue = pool.width_of(ticket.demand), self._model_queues[ticket.demand.model]
            if pool.fits(ticket.demand) or model_queue.too_narrow_for(ticket.demand):
                return ticket
            if width == 1 and pool.has_room(ticket.demand):
                break
            if width <= pool.total and reserved_for is None and not model_queue.reserved_for(ticket):
                pool_queue.reservation.begin(ticket, now)
                break
        return None

    def _grant(self, pool_queue: PoolQueue, ticket: Ticket) -> None:
        demand, pool = ticket.demand, pool_queue.pool
        model_queue = self._model_queues[demand.model]
        charge = pool_queue.order.charge(model_queue.flow(demand), demand.cost)
        self._take_out(model_queue, ticket)
        lease = Lease(
            demand,
            pool_name=pool.name,
            width=pool.width_of(demand),
            clock=self._clock,
            on_cost=charge.settle,
            on_release=partial(self._released, pool, charge),
        )
        pool.take(lease)
        self.granted += 1
        self._leases_by_tenant[demand.tenant] += 1
        ticket.grant(lease)

    def _released(self, pool: SlotPool, charge: Charge, lease: Lease) -> None:
        pool.give_back(lease, self._clock())
        _less(self._leases_by_tenant, lease.demand.tenant)
        if lease.outcome is Outcome.UNUSED:
            charge.settle(0.0)
        self.dispatch()

    def _disown(self, ticket: Ticket) -> None:
        """Its owner will never hear of it: whoever was told of a change has failed."""
        with suppress(Exception):  # and fails again; what went wrong first is what goes up
            self.withdraw(ticket)
            if ticket.lease is not None:
                ticket.lease.release(Outcome.UNUSED)

    def _take_out(self, model_queue: ModelQueue, ticket: Ticket) -> None:
        """The ticket waits no longer."""
        self._patient.discard(ticket)
        model_queue.leave(ticket)
        for pool_queue in model_queue.pool_queues:
            if pool_queue.reservation.ticket is ticket:
                pool_queue.reservation.end()
        self._waiting_bytes -= ticket.demand.body_bytes
        _less(self._waiting_by_tenant, ticket.demand.tenant)

    def _refuse(self, model_queue: ModelQueue, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        self._take_out(model_queue, ticket)
        ticket.withdraw(refusal)

    def _refuse_all(self, model_queue: ModelQueue, refusal: Refusal) -> None:
        for ticket in list(model_queue.waiting.values()):
            self._refuse(model_queue, ticket, refusal)

    def _oldest_tickets(self) -> list[tuple[ModelQueue, Ticket]]:
        return [
            (model_queue, next(iter(model_queue.waiting.values())))
            for model_queue in self._model_queues.values()
            if model_queue.waiting
        ]

    def _due_at(self, model_queue: ModelQueue, ticket: Ticket) -> float:
        """When its wait is over."""
        return model_queue.clock.when(ticket.counts_from + self.limits.queue_timeout_s)


def _less(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]


def _nobody_waits() -> None:
    """A scheduler without a timer: whoever has one calls `tick`."""
