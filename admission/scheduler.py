"""The admission queue: which ticket gets which slot, decided synchronously over plain data.

A *lane* holds the tickets of one model, in two lines (interactive, batch), and the pools that may serve
it. A freed slot goes to the first ticket in order that may use it. What holds after every call:

I1  A pool never has more live leases, quarantined and foreign slots than `total`, unless it shrank.
I2  No slot idles while an admissible ticket waits (but for slots held for a wide ticket).
I3  Nobody overtakes within a tenant, a model, a priority and a width.
I4  Every ticket is settled exactly once; every grant is released exactly once.
I5  Withdrawal and grant cost the same with ten thousand tickets waiting as with ten.

Order: interactive before batch; but a batch ticket that has waited `BATCH_AGE_S` since it came and since
the last batch grant goes first, so that batch work gets at least that rate. Within a class the fair
order of `admission.fair`. Wide tickets: see `admission.reservation`.

A check and the taking of what it found are one step: nothing here awaits. Times come from `clock`.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from admission.errors import Refusal, Refused
from admission.fair import FairClock, Line
from admission.lease import Lease, Outcome
from admission.pool import SlotPool, mean_service_s
from admission.reservation import Reservation
from admission.ticket import Demand, Priority, Ticket

__all__ = ["QueueLimits", "QueueStatus", "Scheduler"]

BATCH_AGE_S = 5.0
_UNKNOWN_SERVICE_S = 2.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_queue: int
    """Tickets that may wait for one model."""
    max_queue_per_tenant: int
    max_queue_bytes: int
    """Bytes of all waiting bodies together."""
    queue_timeout_s: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    depth: int
    by_tenant: dict[str, int]
    oldest_s: float


class Lane:
    """The tickets of one model and the pools that may serve it."""

    __slots__ = ("last_batch_at", "lines", "model", "pools", "waiting")

    def __init__(self, model: str, clock: FairClock) -> None:
        self.model = model
        self.pools: tuple[SlotPool, ...] = ()
        self.lines = {priority: Line(clock) for priority in Priority}
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        """All queued tickets in the order they came, parked ones too: deadlines are read off its front."""
        self.last_batch_at = 0.0

    def first(self, now: float) -> tuple[tuple[int, float, int], Ticket] | None:
        """The lane's next ticket and its place in the order over all lanes."""
        best: tuple[tuple[int, float, int], Ticket] | None = None
        for priority, line in self.lines.items():
            found = line.first()
            if found is not None:
                start, ticket = found
                key = (self._rank(priority, ticket, now), start, ticket.seq)
                if best is None or key < best[0]:
                    best = key, ticket
        return best

    def _rank(self, priority: Priority, ticket: Ticket, now: float) -> int:
        aged = priority is Priority.BATCH and now - max(ticket.enqueued_at, self.last_batch_at) >= BATCH_AGE_S
        return -1 if aged else int(priority)


class Scheduler:
    def __init__(self, limits: QueueLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.fair = FairClock()
        self.draining = False
        self.refused: Counter[Refusal] = Counter()
        self.granted = 0
        self.withdrawn = 0
        self._clock = clock
        self._seq = itertools.count(1)
        self._lanes: dict[str, Lane] = {}
        self._reservations: dict[SlotPool, Reservation] = {}
        self._parked_at: dict[int, SlotPool] = {}
        self._waiting_bytes = 0
        self._waiting_by_tenant: Counter[str] = Counter()
        self._leases_by_tenant: Counter[str] = Counter()
        self._max_concurrent: Mapping[str, int] = {}

    def __repr__(self) -> str:
        return f"<Scheduler {self.depth} waiting, {self.leases} leases, {self.granted} granted>"

    # -- what the outside sets

    def route(self, routes: Mapping[str, Iterable[SlotPool]]) -> None:
        """Which pools may serve which model. Tickets of a model that nobody serves any more are refused."""
        for model, pools in routes.items():
            lane = self._lanes.setdefault(model, Lane(model, self.fair))
            lane.pools = tuple(pools)
            for pool in lane.pools:
                self._reservations.setdefault(pool, Reservation())
        for lane in [lane for model, lane in self._lanes.items() if model not in routes]:
            lane.pools = ()
            self._refuse_all(lane, Refusal.NO_BACKEND)
            del self._lanes[lane.model]
        self.dispatch()

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
        lane.lines[demand.priority].join(ticket)
        lane.waiting[ticket.seq] = ticket
        self._waiting_bytes += demand.body_bytes
        self._waiting_by_tenant[demand.tenant] += 1
        self.dispatch()
        if ticket.queued and (crowded := self._crowded(lane, demand)):
            self._take_out(lane, ticket)
            raise self._no(Refusal.QUEUE_FULL, crowded, self.estimate_wait_s(demand.model))
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """The owner no longer waits. Nothing happens to a ticket that is settled."""
        if ticket.queued:
            self.withdrawn += 1
            self._take_out(self._lanes[ticket.demand.model], ticket)
            ticket.withdraw(None)
            self.dispatch()

    def correct(self, tenant: str, difference: float) -> None:
        """A request of this tenant cost `difference` tokens more than was estimated."""
        self.fair.correct(tenant, difference)

    def dispatch(self) -> None:
        """Grant all that can be granted now."""
        now = self._clock()
        for pool in self._reservations:
            self._serve_parked(pool, now)
        while (ticket := self._next(now)) is not None:
            self._place(ticket, now)

    def tick(self) -> None:
        """Time has passed: end the waits that are over, let reservations change phase."""
        now = self._clock()
        for lane in self._lanes.values():
            while lane.waiting:
                ticket = next(iter(lane.waiting.values()))
                if now < ticket.enqueued_at + self.limits.queue_timeout_s:
                    break
                self._refuse(lane, ticket, Refusal.QUEUE_TIMEOUT)
        self.dispatch()

    def next_tick_at(self) -> float | None:
        """When `tick` has something to do if nothing else happens."""
        timeout = self.limits.queue_timeout_s
        times = [
            next(iter(lane.waiting.values())).enqueued_at + timeout
            for lane in self._lanes.values()
            if lane.waiting
        ]
        times += [at for held in self._reservations.values() if (at := held.next_change_at()) is not None]
        return min(times, default=None)

    # -- questions

    @property
    def depth(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def leases(self) -> int:
        """Live leases of all tenants."""
        return sum(self._leases_by_tenant.values())

    def status(self) -> QueueStatus:
        now = self._clock()
        oldest = [
            next(iter(lane.waiting.values())).enqueued_at for lane in self._lanes.values() if lane.waiting
        ]
        by_tenant = {name: count for name, count in self._waiting_by_tenant.items() if count}
        return QueueStatus(self.depth, by_tenant, now - min(oldest) if oldest else 0.0)

    @property
    def leases_by_tenant(self) -> dict[str, int]:
        return dict(self._leases_by_tenant)

    def widest(self, model: str) -> int:
        """The most slots that one request for this model could get; 0 if nothing serves it."""
        lane = self._lanes.get(model)
        return max((pool.total for pool in lane.pools), default=0) if lane else 0

    def estimate_wait_s(self, model: str) -> float:
        """Seconds until a ticket that came now would be served, from the observed service rate."""
        lane = self._lanes.get(model)
        if lane is None or not lane.pools:
            return _UNKNOWN_SERVICE_S
        service = mean_service_s(lane.pools) or _UNKNOWN_SERVICE_S
        slots = max(1, sum(pool.total for pool in lane.pools))
        return service * (len(lane.waiting) + 1) / slots

    # -- mechanism

    def _admit(self, demand: Demand) -> Lane:
        if self.draining:
            raise self._no(Refusal.DRAINING, "the gateway is shutting down", _UNKNOWN_SERVICE_S)
        lane = self._lanes.get(demand.model)
        if lane is None or not lane.pools:
            raise self._no(
                Refusal.NO_BACKEND, f"no backend serves the model {demand.model!r}", _UNKNOWN_SERVICE_S
            )
        limit = self._max_concurrent.get(demand.tenant)
        inside = self._leases_by_tenant[demand.tenant] + self._waiting_by_tenant[demand.tenant]
        if limit is not None and inside >= limit:
            detail = f"this key may have {limit} requests at once"
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

    def _next(self, now: float) -> Ticket | None:
        """The first ticket, over all lanes, that can be granted or has to be parked."""
        best: tuple[tuple[int, float, int], Ticket] | None = None
        for lane in self._lanes.values():
            found = lane.first(now) if lane.waiting else None
            if (
                found is not None
                and (best is None or found[0] < best[0])
                and self._movable(lane, found[1], now)
            ):
                best = found
        return best[1] if best else None

    def _movable(self, lane: Lane, ticket: Ticket, now: float) -> bool:
        return ticket.demand.width > 1 or any(self._open(pool, now) for pool in lane.pools)

    def _open(self, pool: SlotPool, now: float) -> int:
        """Free slots that a ticket which is not parked may take."""
        return 0 if self._reservations[pool].holds(now) else pool.admissible

    def _place(self, ticket: Ticket, now: float) -> None:
        lane = self._lanes[ticket.demand.model]
        width = ticket.demand.width
        line = lane.lines[ticket.demand.priority]
        found = line.first()
        assert found is not None
        able = [pool for pool in lane.pools if pool.total >= width or not pool.admitting]
        if not able:
            self._refuse(lane, ticket, Refusal.NO_BACKEND)
            return
        line.leave(ticket)
        self.fair.charge(ticket, found[0])
        if ticket.demand.priority is Priority.BATCH:
            lane.last_batch_at = now
        pool = max(
            lane.pools,
            key=lambda pool: (self._open(pool, now) >= width, pool.total >= width, pool.admissible),
        )
        if self._open(pool, now) >= width:
            self._grant(lane, ticket, pool, now)
        else:
            self._reservations[pool].park(ticket, now)
            self._parked_at[ticket.seq] = pool

    def _serve_parked(self, pool: SlotPool, now: float) -> None:
        reservation = self._reservations[pool]
        while (ticket := reservation.head) is not None:
            lane, width = self._lanes[ticket.demand.model], ticket.demand.width
            if pool.admitting and width > pool.total:
                self._refuse(lane, ticket, Refusal.NO_BACKEND)
            elif pool.admissible >= width:
                reservation.leave(ticket, now)
                del self._parked_at[ticket.seq]
                self._grant(lane, ticket, pool, now)
            else:
                break

    def _grant(self, lane: Lane, ticket: Ticket, pool: SlotPool, now: float) -> None:
        demand = ticket.demand
        self._forget(lane, ticket)
        lease = Lease(
            pool_name=pool.name,
            tenant=demand.tenant,
            model=demand.model,
            width=demand.width,
            body_bytes=demand.body_bytes,
            granted_at=now,
            on_start=lambda _: self._clock(),
            on_release=lambda lease: self._released(pool, ticket, lease),
        )
        pool.take(lease)
        self.granted += 1
        self._leases_by_tenant[demand.tenant] += 1
        ticket.grant(lease)

    def _released(self, pool: SlotPool, ticket: Ticket, lease: Lease) -> None:
        pool.give_back(lease, self._clock())
        self._less(self._leases_by_tenant, lease.tenant)
        if lease.outcome is Outcome.UNUSED:
            self.fair.refund(ticket)
        self.fair.forget_if_idle(lease.tenant)
        self.dispatch()

    def _take_out(self, lane: Lane, ticket: Ticket) -> None:
        """Remove a queued ticket from wherever it stands."""
        pool = self._parked_at.pop(ticket.seq, None)
        if pool is not None:
            self._reservations[pool].leave(ticket, self._clock())
            self.fair.refund(ticket)
        else:
            lane.lines[ticket.demand.priority].leave(ticket)
        self._forget(lane, ticket)
        self.fair.forget_if_idle(ticket.demand.tenant)

    def _forget(self, lane: Lane, ticket: Ticket) -> None:
        """Count a ticket out of the waiting ones."""
        del lane.waiting[ticket.seq]
        self._waiting_bytes -= ticket.demand.body_bytes
        self._less(self._waiting_by_tenant, ticket.demand.tenant)

    @staticmethod
    def _less(counts: Counter[str], tenant: str) -> None:
        counts[tenant] -= 1
        if not counts[tenant]:
            del counts[tenant]

    def _refuse(self, lane: Lane, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        self._take_out(lane, ticket)
        ticket.withdraw(refusal)

    def _refuse_all(self, lane: Lane, refusal: Refusal) -> None:
        for ticket in list(lane.waiting.values()):
            self._refuse(lane, ticket, refusal)
