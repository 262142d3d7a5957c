"""The admission queue: which ticket gets which slot, decided synchronously over plain data.

A *lane* holds the tickets of one model; a *gate* is a pool and the order of those who wait for it. A
ticket waits at every gate that serves its model, and a freed slot goes to the first ticket in its
gate's order that fits. What holds after every call:

I1  A pool never has more live leases, quarantined and foreign slots than `total`, unless it shrank.
I2  No slot idles while a ticket that may have it waits, but for slots held for a wide ticket.
I3  Nobody overtakes within a tenant, a model and a kind (priority, width, size).
I4  Every ticket is settled exactly once; every grant is released exactly once.
I5  Withdrawal and grant cost the same with ten thousand tickets waiting as with ten.

The order is that of `admission.fair`. A ticket that comes first and needs more than there is, in slots or in
tokens of a shared context, reserves the gate (`admission.reservation`); one that comes first and only misses
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
class Gate:
    """A pool and those who wait for it."""

    pool: SlotPool
    order: Order
    reservation: Reservation = field(default_factory=Reservation)


class Lane:
    """The tickets of one model and the gates that they may pass."""

    __slots__ = ("_flows", "clock", "gates", "waiting")

    def __init__(self) -> None:
        self.clock = WaitingClock()
        self.gates: tuple[Gate, ...] = ()
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        """All queued tickets in the order they came: deadlines are read off its front."""
        self._flows: dict[tuple[str, Kind], Flow] = {}

    @property
    def pools(self) -> list[SlotPool]:
        return [gate.pool for gate in self.gates]

    @property
    def admits(self) -> bool:
        return any(gate.pool.admitting for gate in self.gates)

    def lead_to(self, gates: Iterable[Gate], now: float) -> None:
        self.gates = tuple(gates)
        loading = [pool.loading_until for pool in self.pools if pool.loading_until is not None]
        self.clock.stand_still(now, max(loading) if loading and not self.admits else None)
        for flow in self._flows.values():
            flow.stand_in(self._orders)

    def too_narrow_for(self, demand: Demand) -> bool:
        """Whether nothing that serves the model, or will when it has loaded, has so many slots."""
        return all(pool.admitting and pool.total < demand.width for pool in self.pools)

    def reserved_for(self, ticket: Ticket) -> bool:
        return any(gate.reservation.ticket is ticket for gate in self.gates)

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
        return [gate.order for gate in self.gates]


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
        self._lanes: dict[str, Lane] = {}
        self._gates: dict[SlotPool, Gate] = {}
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
        self._gates = {
            pool: self._gates.get(pool) or Gate(pool, Order(self._weights))
            for pool in itertools.chain.from_iterable(pools.values())
        }
        for model in [model for model in self._lanes if not pools.get(model)]:
            self._refuse_all(self._lanes[model], Refusal.NO_BACKEND)
            del self._lanes[model]
        for model, served in pools.items():
            if served:
                lane = self._lanes.setdefault(model, Lane())
                lane.lead_to((self._gates[pool] for pool in served), now)
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
        for lane in self._lanes.values():
            self._refuse_all(lane, Refusal.DRAINING)

    # -- a ticket's life

    def submit(self, demand: Demand, on_settled: Callable[[], None]) -> Ticket:
        """Take a place in the queue; the ticket may be granted already when this returns.

        Raises `Refused` when there is no place, or nothing could ever serve the demand.
        """
        lane = self._admit(demand)
        now = self._clock()
        ticket = Ticket(demand, seq=next(self._seq), enqueued_at=now, on_settled=on_settled)
        ticket.counts_from = lane.clock.time(now)
        lane.join(ticket)
        self._waiting_bytes += demand.body_bytes
        self._waiting_by_tenant[demand.tenant] += 1
        try:
            self.dispatch()
        except BaseException:
            self._disown(ticket)
            raise
        if ticket.queued and (crowded := self._crowded(lane, demand)):
            self._take_out(lane, ticket)
            self.dispatch()
            raise self._no(Refusal.QUEUE_FULL, crowded, self.estimate_wait_s(demand.model))
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """The owner no longer waits. Nothing happens to a ticket that is settled."""
        if ticket.queued:
            self.withdrawn += 1
            self._take_out(self._lanes[ticket.demand.model], ticket)
            ticket.withdraw(None)
            self.dispatch()

    def dispatch(self) -> None:
        """Grant all that can be granted now."""
        now = self._clock()
        for gate in self._gates.values():
            if gate.reservation.ticket is not None:
                self._review(gate, gate.reservation.ticket, now)
        while self._waiting_by_tenant and self._serve_one(now):
            pass
        self.on_dispatch()

    def tick(self) -> None:
        """Time has passed: end the waits that are over, let reservations change phase.

        Waits do not use up their time while nothing that serves the model admits and some of it loads.
        """
        now = self._clock()
        self._patient = {ticket for ticket in self._patient if now < (ticket.patient_until or 0)}
        for lane in self._lanes.values():
            while lane.waiting:
                ticket = next(iter(lane.waiting.values()))
                if now < self._due_at(lane, ticket):
                    break
                self._refuse(lane, ticket, Refusal.QUEUE_TIMEOUT)
        self.dispatch()

    def next_tick_at(self) -> float | None:
        """When `tick` has something to do if nothing else happens."""
        times = [self._due_at(lane, ticket) for lane, ticket in self._oldest_of_lanes()]
        changes = (gate.reservation.next_change_at() for gate in self._gates.values())
        times += [at for at in changes if at is not None]
        times += [ticket.patient_until for ticket in self._patient if ticket.patient_until is not None]
        return min(times, default=None)

    # -- questions

    @property
    def depth(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def leases(self) -> int:
        """Live leases of all tenants."""
        return sum(self._leases_by_tenant.values())

    @property
    def leases_by_tenant(self) -> dict[str, int]:
        return dict(self._leases_by_tenant)

    def status(self) -> QueueStatus:
        oldest = min((ticket.enqueued_at for _, ticket in self._oldest_of_lanes()), default=None)
        oldest_s = 0.0 if oldest is None else self._clock() - oldest
        return QueueStatus(self.depth, dict(self._waiting_by_tenant), oldest_s)

    def waiting_since(self) -> dict[str, float]:
        """For every model that somebody waits for, since when the first of them does."""
        return {
            model: next(iter(lane.waiting.values())).enqueued_at
            for model, lane in self._lanes.items()
            if lane.waiting
        }

    def widest(self, model: str) -> int:
        """The most slots that one request for this model could get; 0 if nothing serves it."""
        lane = self._lanes.get(model)
        return max((pool.total for pool in lane.pools), default=0) if lane else 0

    def admits(self, model: str) -> bool:
        """Whether anything that serves the model takes requests now."""
        lane = self._lanes.get(model)
        return lane is not None and lane.admits

    def estimate_wait_s(self, model: str) -> float:
        """Seconds until a ticket that came now would be served, from the observed service rate."""
        lane = self._lanes.get(model)
        if lane is None:
            return _UNKNOWN_SERVICE_S
        service = mean_service_s(lane.pools) or _UNKNOWN_SERVICE_S
        slots = max(1, sum(pool.total for pool in lane.pools))
        return service * (len(lane.waiting) + 1) / slots

    def place(self, ticket: Ticket) -> tuple[int, float]:
        """The position of a queued ticket, 1 for the next, and the seconds that it will probably wait.

        An estimate: as the queue stands now, and at the pool where most is behind it. O(waiting tickets).
        """
        lane = self._lanes[ticket.demand.model]
        flow = lane.flow(ticket.demand)
        position = 1 + min((gate.order.ahead(flow, ticket) for gate in lane.gates), default=0)
        service = mean_service_s(lane.pools) or _UNKNOWN_SERVICE_S
        return position, service * position / max(1, sum(pool.total for pool in lane.pools))

    # -- mechanism

    def _admit(self, demand: Demand) -> Lane:
        if self.draining:
            raise self._no(Refusal.DRAINING, "the gateway is shutting down", _UNKNOWN_SERVICE_S)
        lane = self._lanes.get(demand.model)
        if lane is None:
            detail = f"no backend serves the model {demand.model!r}"
            raise self._no(Refusal.NO_BACKEND, detail, _UNKNOWN_SERVICE_S)
        if lane.too_narrow_for(demand):
            detail = f"no backend of the model {demand.model!r} has {demand.width} slots"
            raise self._no(Refusal.NO_BACKEND, detail, None)
        limit = self._max_concurrent.get(demand.tenant)
        inside = self._leases_by_tenant[demand.tenant] + self._waiting_by_tenant[demand.tenant]
        if limit is not None and inside >= limit:
            detail = f"this tenant may have {limit} requests at once"
            raise self._no(Refusal.TENANT_CONCURRENCY, detail, self.estimate_wait_s(demand.model))
        return lane

    def _crowded(self, lane: Lane, demand: Demand) -> str | None:
        """Which bound a ticket that has to wait breaks, itself counted in."""
        limits = self.limits
        if len(lane.waiting) > limits.max_queue:
            return f"{limits.max_queue} requests already wait for this model"
        if self._waiting_by_tenant[demand.tenant] > limits.max_queue_per_tenant:
            return f"{limits.max_queue_per_tenant} requests of this key already wait"
        if self._waiting_bytes > limits.max_queue_bytes:
            return "the requests that wait already hold as much memory as they may"
        return None

    def _no(self, refusal: Refusal, detail: str, retry_after_s: float | None) -> Refused:
        self.refused[refusal] += 1
        return Refused(refusal, detail, retry_after_s)

    def _review(self, gate: Gate, ticket: Ticket, now: float) -> None:
        """Give a reservation up if it can come to nothing here; else let it change phase."""
        stands_here = gate in self._lanes[ticket.demand.model].gates
        pool = gate.pool
        if not (stands_here and pool.admitting and pool.width_of(ticket.demand) <= pool.total):
            gate.reservation.end()
        gate.reservation.advance(now)

    def _serve_one(self, now: float) -> bool:
        """Settle one ticket, at the gate with most free slots where one can be: so a ticket goes where least
        is going on. False if there is none."""
        gates: Iterable[Gate] = self._gates.values()
        if len(self._gates) > 1:
            gates = sorted(gates, key=lambda gate: -gate.pool.free)
        return any(self._serve(gate, now) for gate in gates)

    def _serve(self, gate: Gate, now: float) -> bool:
        """Settle one ticket at this gate; False if none can be settled here now."""
        ticket = self._first(gate, now)
        if ticket is None:
            return False
        if not gate.pool.fits(ticket.demand):
            self._refuse(self._lanes[ticket.demand.model], ticket, Refusal.NO_BACKEND)
            return True
        chosen = self._warmest(ticket, gate, now)
        if chosen is None:
            return False
        self._grant(chosen, ticket)
        return True

    def _warmest(self, ticket: Ticket, gate: Gate, now: float) -> Gate | None:
        """Where a ticket that is next at this gate is served: the warmest gate at which it is next as well.

        None if it rather waits for a warm pool that is busy: for a moment, once, and only while nobody else
        could use the slot.
        """
        warmth = ticket.demand.warmth
        mine = warmth.get(gate.pool.name, 0)
        others = [other for other in self._lanes[ticket.demand.model].gates if other.pool.admitting]
        warmer = [other for other in others if warmth.get(other.pool.name, 0) > mine]
        if not warmer:
            return gate
        warmer.sort(key=lambda other: (-warmth[other.pool.name], -other.pool.free))
        for other in warmer:
            if other.pool.fits(ticket.demand) and self._first(other, now) is ticket:
                return other
        worth_it = warmth[warmer[0].pool.name] - mine >= _WORTH_A_WAIT_BYTES
        if worth_it and gate.order.waits_alone(ticket) and self._is_patient(ticket, now):
            return None
        return gate

    def _is_patient(self, ticket: Ticket, now: float) -> bool:
        if ticket.patient_until is None:
            ticket.patient_until = now + self.limits.affinity_max_wait_s
            self._patient.add(ticket)
        return now < ticket.patient_until

    def _first(self, gate: Gate, now: float) -> Ticket | None:
        """The ticket to settle next at this gate: it fits here, or it never will anywhere.

        The gate is reserved for a wide ticket on the way.
        """
        pool, reserved_for = gate.pool, gate.reservation.ticket
        if reserved_for is not None and pool.admitting and pool.fits(reserved_for.demand):
            return reserved_for
        if gate.reservation.holds or not pool.admitting:
            return None
        for ticket in gate.order.heads():
            width, lane = pool.width_of(ticket.demand), self._lanes[ticket.demand.model]
            if pool.fits(ticket.demand) or lane.too_narrow_for(ticket.demand):
                return ticket
            if width == 1 and pool.has_room(ticket.demand):
                break
            if width <= pool.total and reserved_for is None and not lane.reserved_for(ticket):
                gate.reservation.begin(ticket, now)
                break
        return None

    def _grant(self, gate: Gate, ticket: Ticket) -> None:
        demand, pool = ticket.demand, gate.pool
        lane = self._lanes[demand.model]
        charge = gate.order.charge(lane.flow(demand), demand.cost)
        self._take_out(lane, ticket)
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

    def _take_out(self, lane: Lane, ticket: Ticket) -> None:
        """The ticket waits no longer."""
        self._patient.discard(ticket)
        lane.leave(ticket)
        for gate in lane.gates:
            if gate.reservation.ticket is ticket:
                gate.reservation.end()
        self._waiting_bytes -= ticket.demand.body_bytes
        _less(self._waiting_by_tenant, ticket.demand.tenant)

    def _refuse(self, lane: Lane, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        self._take_out(lane, ticket)
        ticket.withdraw(refusal)

    def _refuse_all(self, lane: Lane, refusal: Refusal) -> None:
        for ticket in list(lane.waiting.values()):
            self._refuse(lane, ticket, refusal)

    def _oldest_of_lanes(self) -> list[tuple[Lane, Ticket]]:
        return [(lane, next(iter(lane.waiting.values()))) for lane in self._lanes.values() if lane.waiting]

    def _due_at(self, lane: Lane, ticket: Ticket) -> float:
        """When its wait is over."""
        return lane.clock.when(ticket.counts_from + self.limits.queue_timeout_s)


def _less(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]


def _nobody_waits() -> None:
    """A scheduler without a timer: whoever has one calls `tick`."""
