"""Scheduler and limits together, as a request uses both: random schedules against what tenants are owed.

A request reserves, takes a place, runs and ends. Either part may refuse it, it may leave at any moment, and
its cost may become known before or after its end. Weights, limits and slots change meanwhile.
"""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotgate.admission import (
    Demand,
    Lease,
    Limiter,
    Outcome,
    Priority,
    QueueLimits,
    Refused,
    Scheduler,
    SlotPool,
    TenantLimits,
    Ticket,
    UsageReservation,
)
from tests.admission.simulation import ignore

START = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
QUEUE = QueueLimits(max_queue=8, max_queue_per_tenant=5, queue_timeout_s=30.0)
TENANTS = ("a", "b", "c")
SLOTS = 2

amounts = st.sampled_from([0, 1, 40, 300, 2000])
which = st.integers(0, 1000)
some = st.one_of(st.none(), st.sampled_from([3, 10, 1000]))
limits = st.builds(TenantLimits, some, some, st.one_of(st.none(), st.sampled_from([500, 20_000])))


@dataclass(slots=True, eq=False)
class ChargedRequest:
    ticket: Ticket
    reservation: UsageReservation
    day: datetime.date
    tokens: float
    """The tokens that its tenant is charged now."""
    over: bool = False

    @property
    def tenant(self) -> str:
        return self.ticket.demand.tenant

    @property
    def lease(self) -> Lease | None:
        return self.ticket.lease


class TenantMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pools = [SlotPool("gpu0", SLOTS), SlotPool("gpu1", 1)]
        self.allowed = {pool: pool.total for pool in self.pools}
        self.scheduler = Scheduler(QUEUE, lambda: self.now)
        self.scheduler.route({"m": self.pools})
        self.limiter = Limiter(lambda: self.now, self.utc)
        self.requests: list[ChargedRequest] = []

    def utc(self) -> datetime.datetime:
        return START + datetime.timedelta(seconds=self.now)

    # -- what may happen

    @initialize()
    def begin(self) -> None:
        self.limiter.configure(dict.fromkeys(TENANTS, TenantLimits()))

    @rule(
        given=st.fixed_dictionaries(dict.fromkeys(TENANTS, limits)),
        weights=st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0.01, 1.0, 4.0, 1000.0])),
    )
    def reload(self, given: dict[str, TenantLimits], weights: dict[str, float]) -> None:
        self.limiter.configure(given)
        self.scheduler.set_weights(weights)

    @rule(
        tenant=st.sampled_from(TENANTS),
        tokens=amounts,
        width=st.sampled_from([1, 1, 1, 2]),
        priority=st.sampled_from(Priority),
        size=st.sampled_from([0, 400]),
    )
    def ask(self, tenant: str, tokens: int, width: int, priority: Priority, size: int) -> None:
        before = self.state(tenant)
        try:
            reservation = self.limiter.reserve(tenant, tokens)
        except Refused:
            self.is_as(tenant, before)
            return
        try:
            ticket = self.scheduler.submit(Demand(tenant, "m", width, tokens, priority, size), ignore)
        except Refused:
            reservation.refund()
            self.is_as(tenant, before)
            return
        self.requests.append(ChargedRequest(ticket, reservation, self.limiter.day, reservation.of_day))

    @rule(number=which)
    def leave_the_queue(self, number: int) -> None:
        queued = [request for request in self.live() if request.ticket.queued]
        if queued:
            self.never_ran(queued[number % len(queued)])

    @rule(number=which)
    def have_the_grant_and_not_use_it(self, number: int) -> None:
        if running := self.running():
            request = running[number % len(running)]
            assert request.lease is not None
            request.lease.release(Outcome.UNUSED)
            self.never_ran(request)

    @rule(number=which, tokens=amounts, outcome=st.sampled_from(Outcome), late=st.booleans())
    def end(self, number: int, tokens: int, outcome: Outcome, late: bool) -> None:
        """End the request. With `late`, its cost becomes known after the next request has got the slot."""
        if running := self.running():
            request = running[number % len(running)]
            assert request.lease is not None
            if late:
                request.lease.release(outcome)
            request.lease.release(outcome)
            self.settled(request, tokens)
            request.over = True

    @rule(number=which, tokens=amounts)
    def learn_what_it_costs(self, number: int, tokens: int) -> None:
        """Settle the cost of a request that runs, or that ended long ago."""
        known = [request for request in self.requests if request.lease is not None]
        if known:
            request = known[number % len(known)]
            if request.lease is not None and request.lease.outcome is not Outcome.UNUSED:
                self.settled(request, tokens)

    @rule(seconds=st.sampled_from([0.5, 7.0, 61.0, 50_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.tick()
        for request in self.live():
            if not request.ticket.queued and request.lease is None:
                self.never_ran(request)

    @rule(pool=st.integers(0, 1), total=st.integers(1, 3))
    def have_other_slots(self, pool: int, total: int) -> None:
        changed = self.pools[pool]
        self.allowed[changed] = max(total, changed.leased + len(changed.quarantine))
        changed.total = total
        self.scheduler.dispatch()

    @rule(pool=st.integers(0, 1))
    def be_verified(self, pool: int) -> None:
        self.pools[pool].restarted()
        self.scheduler.dispatch()

    # -- what must hold

    @invariant()
    def accounts_hold_what_is_reserved_and_what_was_settled(self) -> None:
        for tenant in TENANTS:
            used = self.limiter.used_today(tenant) + self.limiter.reserved_today(tenant)
            expected = sum(
                request.tokens
                for request in self.requests
                if request.tenant == tenant and request.day == self.limiter.day
            )
            assert used == pytest.approx(expected, abs=1e-6), tenant

    @invariant()
    def no_limit_gives_more_than_it_has(self) -> None:
        for tenant in TENANTS:
            for state in (self.limiter.requests_of(tenant), self.limiter.tokens_of(tenant)):
                assert state is None or 0 <= state.remaining <= state.limit

    @invariant()
    def no_slot_is_lost_and_none_is_used_twice(self) -> None:
        leases = [request.lease for request in self.running()]
        for pool in self.pools:
            held = [lease for lease in leases if lease is not None and lease.pool_name == pool.name]
            assert pool.leased == sum(lease.width for lease in held)
            assert len(pool.leases) == len(held)
            in_use = pool.leased + len(pool.quarantine)
            assert in_use <= self.allowed[pool]
            assert pool.free == max(0, pool.total - in_use)
            self.allowed[pool] = max(pool.total, in_use)

    @invariant()
    def no_slot_idles_while_somebody_waits_for_it(self) -> None:
        for request in self.live():
            for pool in self.pools if request.ticket.queued else ():
                fits = pool.admitting and pool.free >= request.ticket.demand.width
                assert not fits or self.scheduler._pool_queues[pool].reservation.idle_slots

    @invariant()
    def tenants_are_counted_right(self) -> None:
        queued = Counter(request.tenant for request in self.live() if request.ticket.queued)
        assert self.scheduler.status().by_tenant == queued
        assert self.scheduler.leases_by_tenant == Counter(request.tenant for request in self.running())

    # -- the end

    def teardown(self) -> None:
        for request in self.live():
            if request.ticket.queued:
                self.never_ran(request)
        while running := self.running():
            for request in running:
                assert request.lease is not None
                request.lease.release(Outcome.FINISHED)
                request.over = True
        for pool in self.pools:
            pool.restarted()
            assert pool.free == pool.total
        assert (self.scheduler.status().by_tenant, self.scheduler.leases_by_tenant) == ({}, {})
        self.accounts_hold_what_is_reserved_and_what_was_settled()
        self.now += 10**6
        for tenant in TENANTS:
            assert self.limiter.used_today(tenant) == 0
            for state in (self.limiter.requests_of(tenant), self.limiter.tokens_of(tenant)):
                assert state is None or state.remaining == state.limit

    # -- mechanism

    def live(self) -> list[ChargedRequest]:
        return [request for request in self.requests if not request.over]

    def running(self) -> list[ChargedRequest]:
        return [request for request in self.live() if request.lease is not None]

    def never_ran(self, request: ChargedRequest) -> None:
        self.scheduler.withdraw(request.ticket)
        request.reservation.refund()
        request.reservation.refund()
        request.tokens, request.over = 0, True

    def settled(self, request: ChargedRequest, tokens: float) -> None:
        request.reservation.settle(tokens)
        request.tokens = tokens

    def state(self, tenant: str) -> tuple[float, ...]:
        states = (self.limiter.requests_of(tenant), self.limiter.tokens_of(tenant))
        return (
            self.limiter.used_today(tenant),
            *(state.full_in_s for state in states if state is not None),
        )

    def is_as(self, tenant: str, before: tuple[float, ...]) -> None:
        """Check that a refused request has cost nothing."""
        assert self.state(tenant) == pytest.approx(before)


TenantMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTenants = pytest.mark.slow(TenantMachine.TestCase)
