"""Random schedules against the invariants of `admission.scheduler`, checked after every step.

The machine does all that the gateway could do to a scheduler, in any order. It keeps its own books of tickets
and leases and compares them. At the end of each run all pools become free, so that every waiting ticket gets
a slot.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from slotgate.admission import (
    Demand,
    Lease,
    Outcome,
    Priority,
    QueueLimits,
    Refusal,
    Refused,
    Scheduler,
    SlotPool,
    SlotProbe,
    Ticket,
    TicketState,
)
from tests.admission.simulation import ROOMY

TIGHT = QueueLimits(max_queue=6, max_queue_per_tenant=4, queue_timeout_s=30.0)
MODELS = ("a", "b", "c")
POOLS = 3
WIDEST = 4

models = strategies.sampled_from(MODELS)
pool_numbers = strategies.integers(0, POOLS - 1)
demands = strategies.builds(
    Demand,
    tenant=strategies.sampled_from(["t1", "t2", "t3"]),
    model=models,
    width=strategies.sampled_from([1, 1, 1, 2, 3, WIDEST]),
    cost=strategies.sampled_from([1.0, 10.0, 1000.0]),
    priority=strategies.sampled_from(Priority),
    body_bytes=strategies.sampled_from([0, 100, 500]),
)


class TicketOwner:
    """The waiting side of one ticket."""

    def __init__(self, demand: Demand, settled: list[TicketOwner]) -> None:
        self.demand = demand
        self.ticket: Ticket | None = None
        self._settled = settled

    def settled(self) -> None:
        self._settled.append(self)


class SchedulerMachine(RuleBasedStateMachine):
    owners: Bundle[TicketOwner] = Bundle("owners")
    probes: Bundle[tuple[SlotPool, SlotProbe]] = Bundle("probes")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pools = [SlotPool(f"gpu{number}", number + 1) for number in range(POOLS)]
        self.routes = {"a": self.pools[:1], "b": self.pools[1:], "c": self.pools}
        self.scheduler = Scheduler(ROOMY, lambda: self.now, self.dispatched)
        self.all: list[TicketOwner] = []
        self.settled: list[TicketOwner] = []
        """The owners that were called, in the order of the calls."""
        self.released = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.held: defaultdict[Lease, float] = defaultdict(float)
        """Slot-seconds by lease."""
        self.held_idle: defaultdict[str, float] = defaultdict(float)
        """Slot-seconds by tenant for which slots were held back from others."""
        self.free_of_charge: set[Lease] = set()
        """Leases whose quarantined slots could go to no other request for a while."""
        self.allowed = {pool: pool.total for pool in self.pools}
        self.scheduler.route(self.routes)

    def dispatched(self) -> None:
        at = self.scheduler.next_tick_at()
        assert at is None or at > self.now or self.overdue(), "a timer in the past would spin"

    def overdue(self) -> list[Ticket]:
        limit = self.now - self.scheduler.limits.queue_timeout_s
        return [ticket for ticket in self.waiting() if ticket.enqueued_at <= limit]

    def holds(self, pool: SlotPool) -> bool:
        return bool(self.scheduler._pool_queues[pool].reservation.idle_slots)

    def waiting(self) -> list[Ticket]:
        return [owner.ticket for owner in self.all if owner.ticket is not None and owner.ticket.queued]

    def granted(self) -> list[Ticket]:
        tickets = [owner.ticket for owner in self.settled]
        return [ticket for ticket in tickets if ticket is not None and ticket.lease is not None]

    def live(self) -> list[Lease]:
        leases = [ticket.lease for ticket in self.granted()]
        return [lease for lease in leases if lease is not None and lease.live]

    # -- what may happen

    @rule(tight=strategies.booleans())
    def set_limits(self, tight: bool) -> None:
        self.scheduler.limits = TIGHT if tight else ROOMY
        self.scheduler.set_weights({"t1": 2.0} if tight else {})

    @rule(target=owners, demand=demands)
    def submit(self, demand: Demand) -> TicketOwner | MultipleResults[TicketOwner]:
        owner = TicketOwner(demand, self.settled)
        before = self.scheduler.refused.total()
        try:
            owner.ticket = self.scheduler.submit(owner.demand, owner.settled)
        except Refused as refused:
            assert owner not in self.settled
            assert self.scheduler.refused.total() == before + 1
            self.check_refusal(owner.demand, refused.refusal)
            return multiple()
        self.all.append(owner)
        return owner

    def check_refusal(self, demand: Demand, refusal: Refusal) -> None:
        pools = self.routes.get(demand.model, [])
        too_wide = all(pool.admitting and pool.total < demand.width for pool in pools)
        if refusal is Refusal.NO_BACKEND:
            assert too_wide
        else:
            assert refusal is Refusal.QUEUE_FULL
            assert self.scheduler.limits is TIGHT
            reserved = self.scheduler._pool_queues
            assert all(
                not pool.admitting or pool.free < demand.width or reserved[pool].reservation.ticket
                for pool in pools
            )

    @rule(owner=owners)
    def withdraw(self, owner: TicketOwner) -> None:
        assert owner.ticket is not None
        was_queued = owner.ticket.queued
        self.scheduler.withdraw(owner.ticket)
        assert not owner.ticket.queued
        if was_queued:
            assert (owner.ticket.state, owner.ticket.refusal) == (TicketState.WITHDRAWN, None)

    @rule(owner=owners)
    def start(self, owner: TicketOwner) -> None:
        if owner.ticket is not None and owner.ticket.lease is not None:
            owner.ticket.lease.start()

    @rule(owner=owners, outcome=strategies.sampled_from(Outcome))
    def release(self, owner: TicketOwner, outcome: Outcome) -> None:
        """Release a lease, possibly for the second time. The second release must have no effect."""
        if owner.ticket is None or owner.ticket.lease is None:
            return
        if owner.ticket.lease.live:
            self.released += 1
            self.outcomes[outcome] += 1
        owner.ticket.lease.release(outcome)

    @rule(number=pool_numbers, total=strategies.integers(1, WIDEST))
    def resize(self, number: int, total: int) -> None:
        pool = self.pools[number]
        self.allowed[pool] = max(total, pool.leased + len(pool.quarantine) + pool.foreign)
        pool.total = total
        self.scheduler.dispatch()

    @rule(number=pool_numbers)
    def turn_admission(self, number: int) -> None:
        self.pools[number].admitting = not self.pools[number].admitting
        self.scheduler.route(self.routes)

    @rule(model=models, served_by=strategies.sets(pool_numbers))
    def reroute(self, model: str, served_by: set[int]) -> None:
        self.routes = {**self.routes, model: [self.pools[number] for number in sorted(served_by)]}
        self.scheduler.route(self.routes)

    @rule(seconds=strategies.sampled_from([0.1, 1.0, 2.0, 7.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.hold(seconds)
        self.now += seconds
        self.scheduler.tick()
        assert not self.overdue()

    def hold(self, seconds: float) -> None:
        """Count held slots.

        Live leases hold slots, and abandoned leases hold them until they leave the quarantine.
        """
        for lease in self.live():
            self.held[lease] += seconds * lease.width
        for pool_queue in self.scheduler._pool_queues.values():
            reservation = pool_queue.reservation
            if reservation.ticket is not None:
                self.held_idle[reservation.ticket.demand.tenant] += seconds * reservation.idle_slots
        for pool in self.pools:
            for slot in pool.quarantine.slots:
                if slot.lease is not None and slot.lease not in self.free_of_charge:
                    self.held[slot.lease] += seconds

    @rule(target=probes, number=pool_numbers)
    def send_probe(self, number: int) -> tuple[SlotPool, SlotProbe]:
        pool = self.pools[number]
        return pool, pool.probe_sent(self.now)

    @rule(
        asked=consumes(probes),
        running=strategies.one_of(strategies.none(), strategies.sets(strategies.integers(0, WIDEST - 1))),
    )
    def answer_probe(self, asked: tuple[SlotPool, SlotProbe], running: set[int] | None) -> None:
        pool, probe = asked
        tasks = None if running is None else frozenset(sorted(running)[: pool.total])
        pool.probe_answered(probe, tasks, self.now)
        self.scheduler.dispatch()

    @rule(number=pool_numbers)
    def restart(self, number: int) -> None:
        self.pools[number].restarted()
        self.scheduler.dispatch()

    # -- what must hold

    @invariant()
    def no_pool_has_more_than_its_slots_in_use(self) -> None:
        for pool in self.pools:
            in_use = pool.leased + len(pool.quarantine) + pool.foreign
            assert in_use <= self.allowed[pool], f"{pool!r}, {pool.foreign} foreign"
            self.allowed[pool] = max(pool.total, in_use)

    @invariant()
    def no_slot_idles_while_a_ticket_may_have_it(self) -> None:
        for ticket in self.waiting():
            for pool in self.routes[ticket.demand.model]:
                fits = pool.admitting and pool.free >= ticket.demand.width
                assert not fits or self.holds(pool), f"{ticket!r} waits for nothing at {pool!r}"

    @invariant()
    def slots_are_held_for_a_wide_ticket_that_waits_for_them(self) -> None:
        waiting = self.waiting()
        for pool, pool_queue in self.scheduler._pool_queues.items():
            ticket = pool_queue.reservation.ticket
            if ticket is not None:
                assert ticket in waiting
                assert pool in self.routes[ticket.demand.model]
                assert pool.admitting
                assert not pool.admitting or pool.free < ticket.demand.width
                assert ticket.demand.width <= pool.total

    @invariant()
    def nobody_overtakes_its_like(self) -> None:
        last: dict[object, int] = {}
        for ticket in [*self.granted(), *sorted(self.waiting(), key=lambda ticket: ticket.seq)]:
            demand = ticket.demand
            kind = demand.tenant, demand.model, demand.priority, demand.width
            assert last.get(kind, 0) < ticket.seq
            last[kind] = ticket.seq

    @invariant()
    def every_ticket_is_settled_once_and_every_grant_released_once(self) -> None:
        calls = Counter(self.settled)
        for owner in self.all:
            assert owner.ticket is not None
            assert calls[owner] == (0 if owner.ticket.queued else 1)
        assert self.scheduler.granted == len(self.granted())
        assert self.scheduler.granted == self.released + len(self.live())
        total = Counter[Outcome]()
        for pool in self.pools:
            total.update(pool.released)
        assert +total == self.outcomes

    @invariant()
    def the_books_agree(self) -> None:
        waiting, live = self.waiting(), self.live()
        assert self.scheduler.depth == len(waiting)
        assert self.scheduler.status().by_tenant == Counter(ticket.demand.tenant for ticket in waiting)
        assert self.scheduler.leases_by_tenant == Counter(lease.demand.tenant for lease in live)
        for pool in self.pools:
            held = [lease for lease in live if lease.pool_name == pool.name]
            assert dict.fromkeys(held) == dict.fromkeys(pool.leases)
            assert pool.leased == sum(lease.width for lease in held)

    @invariant()
    def every_tenant_is_charged_for_the_slot_time_that_it_held(self) -> None:
        held = self.held_idle.copy()
        for lease, seconds in self.held.items():
            if lease.outcome is not Outcome.UNUSED:
                held[lease.demand.tenant] += seconds
        charged = defaultdict(float, self.scheduler.slot_seconds)
        for charge in self.scheduler._accounts.open_charges:
            charge.update(self.now)
            charged[charge.account.tenant] += charge.held
        for tenant in {*held, *charged}:
            assert charged[tenant] == pytest.approx(held[tenant]), tenant
        routed = {pool for pools in self.routes.values() for pool in pools}
        for pool in self.pools:
            if not pool.admitting or pool not in routed:
                leases = (slot.lease for slot in pool.quarantine.slots)
                self.free_of_charge.update(lease for lease in leases if lease is not None)

    @invariant()
    def no_clock_is_further_ahead_than_what_its_tenant_runs(self) -> None:
        for pool_queue in self.scheduler._pool_queues.values():
            for account in pool_queue.order.accounts.values():
                guesses = sum(charge._pending for charge in account.charges)
                weight = pool_queue.order.weight(account.tenant)
                assert account.clocks[0].pending <= guesses / min(1.0, weight / 2) + 1e-6
                assert account.clocks[0].open == len(account.charges)
                assert account.charges or account.clocks[0].value == account.clocks[0].settled
            for clock in pool_queue.order.classes:
                assert clock.open or clock.pending == 0

    @invariant()
    def limits_are_kept(self) -> None:
        if self.scheduler.limits is TIGHT and not self.overdue():
            oldest = min((ticket.enqueued_at for ticket in self.waiting()), default=self.now)
            assert self.now - oldest < TIGHT.queue_timeout_s

    # -- the end

    def teardown(self) -> None:
        """Check that every waiting ticket gets its slots in the end, however wide it is."""
        self.scheduler.limits = ROOMY
        for pool in self.pools:
            pool.admitting, pool.total = True, WIDEST
            pool.restarted()
        self.scheduler.route(dict.fromkeys(MODELS, self.pools))
        for _ in range(len(self.all) + 1):
            for lease in self.live():
                lease.release(Outcome.FINISHED)
        assert self.waiting() == []
        assert Counter(self.settled) == Counter(self.all)
        assert (self.scheduler.leases, self.scheduler.depth, self.scheduler.next_tick_at()) == (0, 0, None)
        assert all(pool.free == WIDEST for pool in self.pools)
        assert not self.scheduler._accounts.open_charges
        self.every_tenant_is_charged_for_the_slot_time_that_it_held()
        self.no_clock_is_further_ahead_than_what_its_tenant_runs()


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestScheduler = pytest.mark.slow(SchedulerMachine.TestCase)
