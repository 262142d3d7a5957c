"""Random schedules against the invariants at the top of `admission.scheduler`."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from admission import Lease, Outcome, Refused, Ticket, TicketState
from tests.admission.rig import Rig

MODELS = {"left": ["x"], "right": ["y"], "both": ["x", "y"]}
OUTCOMES = st.sampled_from(list(Outcome))


class Schedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig({"x": 2, "y": 3}, models=MODELS)
        self.tickets: list[Ticket] = []
        self.settled = 0
        self.shrunk = False

    @property
    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.queued]

    @property
    def live(self) -> list[Lease]:
        return [ticket.lease for ticket in self.tickets if ticket.lease is not None and ticket.lease.live]

    @rule(
        tenant=st.sampled_from("abc"),
        model=st.sampled_from(list(MODELS)),
        width=st.sampled_from([1, 1, 1, 2, 3]),
        cost=st.floats(1, 100),
        batch=st.booleans(),
    )
    def submit(self, tenant: str, model: str, width: int, cost: float, *, batch: bool) -> None:
        try:
            ticket = self.rig.submit(tenant, model=model, width=width, cost=cost, batch=batch)
        except Refused:
            return
        self.tickets.append(ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.rig.scheduler.withdraw(data.draw(st.sampled_from(self.waiting)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outcome=OUTCOMES, twice=st.booleans())
    def release(self, data: st.DataObject, outcome: Outcome, *, twice: bool) -> None:
        lease = data.draw(st.sampled_from(self.live))
        lease.release(outcome)
        if twice:
            lease.release(Outcome.FINISHED)
        assert lease.outcome is outcome

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.live)).start()

    @rule(pool=st.sampled_from("xy"), busy=st.integers(0, 3))
    def probe(self, pool: str, busy: int) -> None:
        slots = self.rig.pools[pool]
        slots.probe_answered(slots.probe_sent(self.rig.now), busy)
        self.rig.scheduler.dispatch()

    @rule(pool=st.sampled_from("xy"), total=st.integers(1, 4))
    def resize(self, pool: str, total: int) -> None:
        self.shrunk = self.shrunk or total < self.rig.pools[pool].total
        self.rig.pools[pool].total = total
        self.rig.scheduler.dispatch()

    @rule(pool=st.sampled_from("xy"), admitting=st.booleans())
    def admit(self, pool: str, *, admitting: bool) -> None:
        self.rig.pools[pool].admitting = admitting
        self.rig.scheduler.dispatch()

    @rule(tenant=st.sampled_from("abc"), difference=st.floats(-50, 50))
    def correct(self, tenant: str, difference: float) -> None:
        self.rig.scheduler.correct(tenant, difference)

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.rig.later(seconds)

    @invariant()
    def no_pool_gives_more_than_it_has(self) -> None:
        for pool in self.rig.pools.values():
            held = sum(lease.width for lease in pool.leases)
            assert held == pool.leased
            assert self.shrunk or held + len(pool.quarantine) <= pool.total

    @invariant()
    def no_slot_idles_while_a_narrow_ticket_may_use_it(self) -> None:
        for ticket in self.waiting:
            if ticket.demand.width == 1:
                pools = [self.rig.pools[name] for name in MODELS[ticket.demand.model]]
                free = [pool for pool in pools if pool.admissible and not self._held(pool.name)]
                assert not free, (ticket, free)

    def _held(self, pool: str) -> bool:
        """A wide ticket waits that may be parked there."""
        return any(ticket.demand.width > 1 and pool in MODELS[ticket.demand.model] for ticket in self.waiting)

    @invariant()
    def everybody_is_accounted_for(self) -> None:
        scheduler = self.rig.scheduler
        assert scheduler.depth == len(self.waiting)
        assert scheduler.leases == len(self.live)
        granted = [ticket for ticket in self.tickets if ticket.state is TicketState.GRANTED]
        released = sum(sum(pool.released.values()) for pool in self.rig.pools.values())
        assert scheduler.granted == len(granted) == released + len(self.live)

    @invariant()
    def like_tickets_are_granted_in_arrival_order(self) -> None:
        alike: dict[object, list[Ticket]] = {}
        for ticket in self.tickets:
            if ticket.state is not TicketState.WITHDRAWN:
                demand = ticket.demand
                key = (demand.tenant, demand.model, demand.priority, demand.width)
                alike.setdefault(key, []).append(ticket)
        for tickets in alike.values():
            queued = [ticket.queued for ticket in tickets]
            assert queued == sorted(queued), tickets

    def teardown(self) -> None:
        """When everything has ended every slot is free again."""
        for pool in self.rig.pools.values():
            pool.admitting = True
        for ticket in self.tickets:
            self.rig.scheduler.withdraw(ticket)
        for lease in self.live:
            lease.release(Outcome.FINISHED)
        for pool in self.rig.pools.values():
            self.rig.now += 100
            pool.probe_answered(pool.probe_sent(self.rig.now), 0)
            assert pool.free == pool.total, pool
        assert self.rig.scheduler.depth == 0


Schedules.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSchedules = Schedules.TestCase
