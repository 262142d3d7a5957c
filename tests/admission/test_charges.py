"""Random mixes of grants and endings: every tenant is charged for what it used, and no clock runs ahead.

Requests end in every way, at any time. Slots leave the quarantine late, one by one, or only with a restart of
their backend. Backends crash, and their tenants are forgiven or not. The guesses are wrong by a factor of up
to a thousand. The test keeps books of its own and compares.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from slotgate.admission import Demand, Lease, Outcome, Priority, Scheduler, SlotPool, Ticket
from slotgate.admission.fair_order import Account, FairOrder
from tests.admission.simulation import ROOMY, Simulation, WrongGuesses, ignore

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 1.0}
MODELS = ("x", "both", "y")
STEPS = 400
CLOSE = 1e-6


@dataclass(slots=True, eq=False)
class Held:
    """The use of one lease so far, by the test's own books."""

    tenant: str
    slots: int
    """Slots that are not idle yet."""
    seconds: float = 0.0
    """Slot-seconds."""


class Mix:
    """A scheduler with two pools that share one order, and the test's own books."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.first, self.second = SlotPool("first", 3), SlotPool("second", 2)
        guesses = WrongGuesses({tenant: 10 ** self.dice.uniform(-3, 3) for tenant in WEIGHTS})
        self.scheduler = Scheduler(ROOMY, lambda: self.now, ignore, guesses)
        self.scheduler.set_weights(WEIGHTS)
        self.scheduler.route({"x": [self.first], "both": [self.first, self.second], "y": [self.second]})
        self.tickets: list[Ticket] = []
        self.held: dict[Lease, Held] = {}
        self.used: defaultdict[str, float] = defaultdict(float)
        """Tenant -> slot-seconds of leases."""
        self.held_idle: defaultdict[str, float] = defaultdict(float)
        """Tenant -> slot-seconds for which slots were held idle for its wide tickets."""
        self.settled: dict[tuple[str, Priority], float] = {}
        """The settled parts of all clocks at the last look."""

    @property
    def order(self) -> FairOrder:
        return self.scheduler._pool_queues[self.first].order

    def step(self) -> None:
        """Do something at one moment, and then let time pass."""
        action = self.dice.choice(
            (self.submit, self.submit, self.end, self.end, self.withdraw, self.probe, self.crash)
        )
        action()
        self.find_leases()
        self.check_lifts()
        if self.dice.random() < 0.7:
            self.pass_time(self.dice.choice((0.01, 0.3, 1.0, 5.0, 40.0)))

    # -- what may happen

    def submit(self) -> None:
        demand = Demand(
            self.dice.choice([*WEIGHTS]),
            self.dice.choice(MODELS),
            self.dice.choice((1, 1, 1, 2)),
            self.dice.choice((1.0, 1000.0)),
            self.dice.choice((Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BATCH)),
        )
        self.tickets.append(self.scheduler.submit(demand, ignore))

    def withdraw(self) -> None:
        if waiting := [ticket for ticket in self.tickets if ticket.queued]:
            self.scheduler.withdraw(self.dice.choice(waiting))

    def end(self) -> None:
        if live := [lease for lease in self.held if lease.live]:
            self.finish(self.dice.choice(live), self.dice.choice([*Outcome]))

    def finish(self, lease: Lease, outcome: Outcome) -> None:
        held = self.held[lease]
        if outcome is Outcome.UNUSED:
            self.used[held.tenant] -= held.seconds
            del self.held[lease]
        elif outcome.verified:
            del self.held[lease]
        if self.dice.random() < 0.5:
            lease.start()
        lease.release(outcome)

    def probe(self) -> None:
        """Look at a pool. Its quarantined slots may be seen busy, and stay."""
        pool = self.dice.choice((self.first, self.second))
        busy = frozenset(range(self.dice.randint(0, pool.total)))
        before = {slot.lease for slot in pool.quarantine.slots}
        probe = pool.probe_sent(self.now)
        self.pass_time(0.2)
        pool.probe_answered(probe, busy, self.now)
        self.look_at_quarantine(pool, before)
        self.scheduler.dispatch()

    def crash(self) -> None:
        """A backend dies under its requests, and comes back. Some of them are forgiven."""
        if self.dice.random() < 0.8:
            return
        pool = self.dice.choice((self.first, self.second))
        dying = [lease for lease in self.held if lease.live and lease.pool_name == pool.name]
        before = {slot.lease for slot in pool.quarantine.slots}
        for lease in dying:
            self.finish(lease, Outcome.ABANDONED)
        before |= {slot.lease for slot in pool.quarantine.slots}
        forgiven = [(lease, self.held[lease]) for lease in dying if self.dice.random() < 0.5]
        if self.dice.random() < 0.5:  # the backend is back before anybody knows whom to forgive
            pool.restarted()
        for lease, held in forgiven:
            lease.forgive()
            self.used[held.tenant] -= held.seconds
            del self.held[lease]
        pool.restarted()
        self.look_at_quarantine(pool, before)
        self.scheduler.dispatch()

    def pass_time(self, seconds: float) -> None:
        given: defaultdict[str, float] = defaultdict(float)
        for held in self.held.values():
            held.seconds += seconds * held.slots
            given[held.tenant] += seconds * held.slots
        for tenant, slot_seconds in given.items():
            self.used[tenant] += slot_seconds
        for pool_queue in self.scheduler._pool_queues.values():
            reservation = pool_queue.reservation
            if reservation.ticket is not None:
                self.held_idle[reservation.ticket.demand.tenant] += seconds * reservation.idle_slots
        self.now += seconds
        self.check_growth(given)
        self.scheduler.tick()
        self.find_leases()
        self.read_clocks()

    def find_leases(self) -> None:
        for ticket in self.tickets:
            if ticket.lease is not None and ticket.lease.live and ticket.lease not in self.held:
                self.held[ticket.lease] = Held(ticket.demand.tenant, ticket.lease.width)
        self.tickets = [ticket for ticket in self.tickets if ticket.queued]

    def look_at_quarantine(self, pool: SlotPool, before: set[Lease | None]) -> None:
        """Take out of the books what has left the quarantine."""
        left: defaultdict[Lease | None, int] = defaultdict(int)
        for slot in pool.quarantine.slots:
            left[slot.lease] += 1
        for lease in before:
            if lease in self.held:
                self.held[lease].slots = left[lease]
                if not left[lease]:
                    del self.held[lease]

    # -- what must hold

    def clocks(self) -> Iterator[tuple[Account, Priority, float]]:
        for account in self.order.accounts.values():
            for charge in account.charges:
                charge.update(self.now)
            for priority in Priority:
                yield account, priority, account.clocks[priority].settled

    def read_clocks(self) -> None:
        self.settled = {(account.tenant, priority): at for account, priority, at in self.clocks()}

    def check_growth(self, given: Mapping[str, float]) -> None:
        """While time passes, a clock gains what its tenant is given, and nothing that was guessed."""
        for account, priority, settled in self.clocks():
            gained = settled - self.settled.get((account.tenant, priority), 0.0)
            due = given[account.tenant] / WEIGHTS[account.tenant]
            assert gained <= due + CLOSE, account
            if priority is Priority.INTERACTIVE:
                assert gained >= due - CLOSE, account

    def check_lifts(self) -> None:
        """While no time passes, a clock is raised to another one at most.

        It is also charged for slots that were held idle for its tenant, which happens only at the next look.
        """
        for account, priority, settled in self.clocks():
            before = self.settled.get((account.tenant, priority), 0.0)
            furthest = max((at for (_, p), at in self.settled.items() if p is priority), default=0.0)
            guessed = sum(charge._pending for charge in account.charges) / WEIGHTS[account.tenant]
            assert account.clocks[Priority.INTERACTIVE].pending == pytest.approx(guessed, abs=CLOSE)
            held_idle = self.held_idle[account.tenant] / WEIGHTS[account.tenant]
            most = max(before, furthest) + held_idle + CLOSE
            assert settled <= most, f"{account!r} was raised beyond all others"
        self.read_clocks()

    def check_sums(self) -> None:
        charged = dict(self.scheduler.slot_seconds)
        for tenant in WEIGHTS:
            used = self.used[tenant] + self.held_idle[tenant]
            assert charged.get(tenant, 0.0) == pytest.approx(used, abs=CLOSE), tenant


@pytest.mark.parametrize("seed", range(12))
def test_sum_of_charges_is_the_sum_of_use_and_no_clock_is_raised_beyond_the_others(seed: int) -> None:
    mix = Mix(seed)
    for _ in range(STEPS):
        mix.step()
    while mix.tickets or mix.held:
        for lease in [lease for lease in mix.held if lease.live]:
            mix.finish(lease, Outcome.FINISHED)
        for pool in (mix.first, mix.second):
            before = {slot.lease for slot in pool.quarantine.slots}
            pool.restarted()
            mix.look_at_quarantine(pool, before)
        mix.scheduler.dispatch()
        mix.find_leases()
        mix.pass_time(0.1)
    mix.check_sums()
    assert sum(mix.used.values()) > 100
    for account in mix.order.accounts.values():
        assert not account.charges
        assert all(clock.pending == 0 and clock.open == 0 for clock in account.clocks)


@pytest.mark.parametrize("factor", [0.001, 1.0, 1000.0])
def test_no_tenant_gets_ahead_of_another_that_waits_by_more_than_one_request_each(factor: float) -> None:
    """Two tenants wait all the time. Their service never differs by more than a longest request of each."""
    dice = random.Random(3)
    longest = {"a": 4.0, "b": 9.0}
    guesses = WrongGuesses({"a": factor, "b": 1 / factor})
    simulation = Simulation(SlotPool("gpu", 1), guesses=guesses)
    for tenant, most in longest.items():
        for _ in range(400):
            simulation.submit(tenant, seconds=dice.uniform(0.1, most))
    simulation.run(400.0)
    ahead, furthest = 0.0, [0.0]
    for request in simulation.served:
        ahead += request.seconds if request.demand.tenant == "a" else -request.seconds
        furthest.append(ahead)
    assert -longest["b"] <= min(furthest) < 0 < max(furthest) <= longest["a"]


def test_newcomer_is_raised_to_facts_and_not_to_guesses_also_if_nobody_waits_beside_it() -> None:
    """Then it is raised to the tenant that was served last, which runs a request that is guessed far too
    long.

    That tenant waits at another pool all the time, so its own clock is not raised when it comes to the pool
    of the newcomer. When its guesses are right again, a guess in the newcomer's clock is a lead that it never
    had.
    """
    first, second = SlotPool("first", 1), SlotPool("second", 1)
    factors = {"busy": 1000.0, "newcomer": 1.0}
    simulation = Simulation(x=[first], both=[first, second], y=[second], guesses=WrongGuesses(factors))
    for _ in range(200):
        simulation.submit("busy", model="x")
    simulation.run(20.5)
    for _ in range(60):
        simulation.submit("newcomer", model="y")
    factors["busy"] = 1.0
    for _ in range(100):
        simulation.submit("busy", model="both")
    simulation.run(2.0)
    before = simulation.work_of("newcomer")
    simulation.run(20.0)
    assert simulation.work_of("newcomer") - before >= 18, "the busy tenant has the first pool for itself"


def test_running_request_that_is_guessed_far_too_long_saves_up_no_claim() -> None:
    """Its tenant is raised to the others' facts when it begins to wait, also if its guess is beyond them."""
    factors = {"busy": 1.0, "sly": 1000.0}
    simulation = Simulation(SlotPool("gpu", 4), guesses=WrongGuesses(factors))
    simulation.submit("sly", seconds=101.0)
    for _ in range(1000):
        simulation.submit("busy")
    simulation.run(100.5)
    factors["sly"] = 1.0
    for _ in range(500):
        simulation.submit("sly")
    simulation.run(1.0)
    before = simulation.work_of("sly")
    simulation.run(30.0)
    assert simulation.work_of("sly") - before <= 0.5 * 4 * 30 + 4
