"""Shares between tenants, arrival order within one, and batch work that always gets on."""

import itertools
import re
from collections import Counter
from itertools import pairwise

import pytest

from slotgate.admission import Demand, Outcome, Priority, SlotPool
from slotgate.admission.fair_order import BATCH_TURN, Charge, FairOrder, Flow
from slotgate.admission.ticket import Ticket
from tests.admission.simulation import Simulation, ignore

SIZES = [1.0, 5.0, 0.5, 2.0, 8.0]


def backlog(simulation: Simulation, tenant: str, work_s: float, *, seconds: float) -> None:
    """Requests of one tenant that are worth so many seconds of work."""
    for _ in range(int(work_s / seconds)):
        simulation.submit(tenant, seconds=seconds)


# -- between tenants


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("tenants", [2, 3, 4, 5])
def test_tenants_get_equal_work_whatever_the_size_of_their_requests(tenants: int, slots: int) -> None:
    simulation = Simulation(SlotPool("gpu", slots))
    names = [f"t{number}" for number in range(tenants)]
    for name, seconds in zip(names, SIZES, strict=False):
        backlog(simulation, name, 1000, seconds=seconds)
    simulation.run(600 * tenants / slots)
    work = [simulation.work_of(name) for name in names]
    assert max(work) <= 1.03 * min(work), work


@pytest.mark.parametrize("tenants", [2, 3, 4, 5])
def test_work_is_shared_equally_over_several_backends(tenants: int) -> None:
    simulation = Simulation(SlotPool("big", 5), SlotPool("small", 1))
    names = [f"t{number}" for number in range(tenants)]
    for name, seconds in zip(names, SIZES, strict=False):
        backlog(simulation, name, 1000, seconds=seconds)
    simulation.run(600 * tenants / 6)
    work = [simulation.work_of(name) for name in names]
    assert max(work) <= 1.03 * min(work), work


@pytest.mark.parametrize("slots", [1, 4])
def test_work_follows_the_weights(slots: int) -> None:
    simulation = Simulation(SlotPool("gpu", slots))
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    simulation.scheduler.set_weights(weights)
    for name, seconds in zip(weights, SIZES, strict=False):
        backlog(simulation, name, 2000, seconds=seconds)
    simulation.run(2800 / slots)
    shares = [simulation.work_of(name) / weight for name, weight in weights.items()]
    assert max(shares) <= 1.03 * min(shares), shares


def test_weights_may_change_while_tickets_wait() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    for name in ("a", "b"):
        backlog(simulation, name, 2000, seconds=1.0)
    simulation.run(100)
    simulation.scheduler.set_weights({"a": 3.0})
    before = {name: simulation.work_of(name) for name in "ab"}
    simulation.run(400)
    got = {name: simulation.work_of(name) - before[name] for name in "ab"}
    assert got["a"] == pytest.approx(3 * got["b"], rel=0.03)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_tenant_that_posts_a_thousand_delays_a_newcomer_by_one_service_time_at_most(slots: int) -> None:
    simulation = Simulation(SlotPool("gpu", slots))
    for _ in range(1000):
        simulation.submit("crowd", seconds=2.0)
    simulation.run(31.0)
    newcomer = simulation.submit("newcomer", seconds=2.0)
    assert simulation.run_until(lambda: newcomer.granted) <= 2.0


def test_a_newcomer_is_not_delayed_by_what_goes_on_at_other_backends() -> None:
    """One virtual time for all would have run far ahead with the other model when the newcomer comes."""
    simulation = Simulation(a=[SlotPool("slow", 1)], b=[SlotPool("fast", 4)])
    for _ in range(1000):
        simulation.submit("crowd", model="a", seconds=2.0)
    for _ in range(4):
        simulation.keep_busy("elsewhere", model="b", seconds=0.1, cost=1000.0)
    simulation.run(31.0)
    newcomer = simulation.submit("newcomer", model="a", seconds=2.0)
    assert simulation.run_until(lambda: newcomer.granted) <= 2.0


def test_a_newcomer_is_not_delayed_by_estimates_that_were_too_high() -> None:
    """Each of these is charged 1,000 at first: virtual time ran ahead of what they cost in truth."""
    simulation = Simulation(SlotPool("gpu", 4))
    crowd = [simulation.submit("crowd", seconds=2.0, cost=1000.0) for _ in range(1000)]
    for _ in range(15):
        simulation.run(1.0)
        for request in crowd:
            if request.granted:
                request.lease.settle_cost(1.0)
        simulation.run(1.0)
    newcomer = simulation.submit("newcomer", seconds=2.0)
    for request in simulation.served[-4:]:
        request.lease.settle_cost(1.0)
    assert simulation.run_until(lambda: newcomer.granted) <= 2.0


def test_a_wide_newcomer_waits_for_what_runs_and_what_slots_are_held_for_but_for_no_crowd() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for _ in range(100):
        simulation.submit("crowd", width=2, seconds=2.0)
    simulation.run(3.0)
    newcomer = simulation.submit("newcomer", width=2, seconds=2.0)
    assert simulation.run_until(lambda: newcomer.granted) <= 4.0


def test_a_batch_newcomer_is_not_delayed_by_interactive_work_that_went_ahead() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    for _ in range(100):
        simulation.submit("crowd", priority=Priority.BATCH)
    for _ in range(2):
        simulation.keep_busy("chatting")
    simulation.run(100)
    newcomer = simulation.submit("newcomer", priority=Priority.BATCH)
    assert simulation.run_until(lambda: newcomer.granted) <= 2 * BATCH_TURN + 2


def test_being_idle_saves_up_no_claim() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    backlog(simulation, "busy", 1000, seconds=1.0)
    simulation.submit("idler")
    simulation.run(500)
    backlog(simulation, "idler", 500, seconds=1.0)
    before = simulation.work_of("idler")
    simulation.run(100)
    assert simulation.work_of("idler") - before == pytest.approx(50, abs=1)


def test_work_that_cost_more_than_estimated_counts_against_its_tenant() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    first = simulation.submit("liar", cost=1.0)
    for _ in range(30):
        simulation.submit("liar", cost=1.0)
        simulation.submit("honest", cost=1.0)
    simulation.run(0.5)
    first.lease.settle_cost(11.0)
    simulation.run(11.0)
    assert Counter(simulation.order()) == {"liar": 1, "honest": 11}


def test_a_correction_that_comes_after_the_release_still_counts() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    first = simulation.submit("liar", cost=1.0)
    simulation.run(2.0)
    first.lease.settle_cost(11.0)
    simulation.submit("honest", cost=1.0)
    for _ in range(30):
        simulation.submit("liar", cost=1.0)
        simulation.submit("honest", cost=1.0)
    simulation.run(9.5)
    assert Counter(simulation.order()) == {"liar": 1, "honest": 10}


def test_work_that_cost_less_than_estimated_is_given_back() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    first = simulation.submit("modest", cost=100.0)
    for _ in range(30):
        simulation.submit("modest", cost=1.0)
        simulation.submit("other", cost=1.0)
    simulation.run(0.5)
    first.lease.settle_cost(1.0)
    simulation.run(20.0)
    assert Counter(simulation.order())["modest"] == pytest.approx(11, abs=1)


def test_corrections_are_weighed_like_estimates() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.scheduler.set_weights({"heavy": 4.0})
    first = simulation.submit("heavy", cost=4.0)
    for _ in range(30):
        simulation.submit("heavy", cost=4.0)
        simulation.submit("light", cost=1.0)
    simulation.run(0.5)
    first.lease.settle_cost(44.0)
    simulation.run(12.0)
    assert Counter(simulation.order()) == {"heavy": 2, "light": 11}


def test_the_last_word_on_a_cost_counts() -> None:
    waiting = Waiting()
    charge = waiting.serve(waiting.join("a"), cost=10.0)
    for cost in (500.0, 0.0, 20.0):
        charge.settle(cost)
    waiting.serve(waiting.join("b"), cost=19.0)
    waiting.join("a")
    waiting.join("b")
    assert [ticket.demand.tenant for ticket in waiting.order.heads()] == ["b"]
    charge.settle(18.0)
    assert [ticket.demand.tenant for ticket in waiting.order.heads()] == ["a"]


def test_what_was_granted_and_not_used_costs_nothing() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    running = simulation.submit("other", seconds=1.0)
    unlucky = simulation.submit("unlucky", cost=1000.0)
    again = [simulation.submit("unlucky") for _ in range(2)]
    simulation.submit("other")
    running.lease.release(Outcome.FINISHED)
    assert unlucky.granted
    unlucky.lease.release(Outcome.UNUSED)
    simulation.run(0)
    assert again[0].granted


# -- within one tenant


def test_a_tenants_requests_are_served_in_the_order_they_came_also_over_models() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(a=[pool], b=[pool])
    sent = [simulation.submit(model=model) for model in "ababbbaaab"]
    simulation.run(20)
    assert simulation.served == sent


def test_equal_claims_are_served_in_the_order_they_came() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit("first")
    names = ["d", "b", "e", "a", "c"]
    for name in names:
        simulation.submit(name)
    simulation.run(10)
    assert simulation.order() == ["first", *names]


# -- priorities


def test_interactive_goes_before_batch() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit("running")
    simulation.submit("batch", priority=Priority.BATCH)
    for _ in range(BATCH_TURN):
        simulation.submit("interactive")
    simulation.run(BATCH_TURN + 2)
    assert simulation.order() == ["running", *["interactive"] * BATCH_TURN, "batch"]


@pytest.mark.parametrize("seconds", [0.01, 1.0, 60.0])
@pytest.mark.parametrize("slots", [1, 4])
def test_batch_gets_one_turn_in_nine_under_constant_interactive_load(slots: int, seconds: float) -> None:
    """Neither less with quick requests nor more with slow ones."""
    simulation = Simulation(SlotPool("gpu", slots))
    for _ in range(2 * slots):
        simulation.keep_busy("chatting", seconds=seconds)
    for _ in range(100):
        simulation.submit("batch", seconds=seconds, priority=Priority.BATCH)
    simulation.run(seconds * 90 * (BATCH_TURN + 1) / slots)
    order = simulation.order()
    positions = [position for position, tenant in enumerate(order) if tenant == "batch"]
    assert positions[0] <= 2 * slots + BATCH_TURN
    assert {after - before for before, after in pairwise(positions)} == {BATCH_TURN + 1}


def test_batch_work_is_shared_fairly_among_tenants_too() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for name, seconds in zip("abc", SIZES, strict=False):
        for _ in range(int(1000 / seconds)):
            simulation.submit(name, seconds=seconds, priority=Priority.BATCH)
    simulation.run(700)
    work = [simulation.work_of(name) for name in "abc"]
    assert max(work) <= 1.03 * min(work), work


# -- bookkeeping


class Waiting:
    """An order by itself, with the flows that stand in it."""

    def __init__(self) -> None:
        self.order = FairOrder({})
        self._flows: dict[str, Flow] = {}
        self._numbers = itertools.count(1)

    def join(self, tenant: str) -> Ticket:
        demand = Demand(tenant, "m")
        ticket = Ticket(demand, seq=next(self._numbers), enqueued_at=0.0, on_settled=ignore)
        self._flows.setdefault(tenant, Flow(demand)).join(ticket, [self.order])
        return ticket

    def leave(self, ticket: Ticket) -> None:
        self._flows[ticket.demand.tenant].leave(ticket)

    def serve(self, ticket: Ticket, cost: float = 1.0) -> Charge:
        charge = self.order.charge(self._flows[ticket.demand.tenant], cost)
        self.leave(ticket)
        return charge

    def sizes(self) -> tuple[int, ...]:
        """Flows, tenants and heap entries."""
        return tuple(map(int, re.findall(r"\d+", repr(self.order))))


def test_tenants_that_come_once_are_forgotten() -> None:
    waiting = Waiting()
    for number in range(10_000):
        waiting.serve(waiting.join(f"t{number}"))
    flows, tenants, entries = waiting.sizes()
    assert flows == 0
    assert tenants < 2_000
    assert entries < 500


def test_kinds_of_tickets_that_come_once_are_forgotten() -> None:
    """Widths and sizes are what clients say."""
    order = FairOrder({})
    for width in range(1, 1000):
        demand = Demand("t", "m", width=width)
        flow, ticket = Flow(demand), Ticket(demand, seq=width, enqueued_at=0.0, on_settled=ignore)
        flow.join(ticket, [order])
        assert order.heads() == [ticket]
        flow.leave(ticket)
    assert order.heads() == []
    assert not order._heaps


def test_a_tenant_that_is_ahead_is_not_forgotten_whoever_comes() -> None:
    waiting = Waiting()
    waiting.serve(waiting.join("greedy"), cost=10**6)
    for number in range(5_000):
        waiting.serve(waiting.join(f"t{number}"))
    waiting.join("greedy")
    newcomer = waiting.join("newcomer")
    assert waiting.order.heads() == [newcomer]


def test_an_order_does_not_grow_with_tickets_that_come_and_go() -> None:
    waiting = Waiting()
    stays = waiting.join("a")
    for _ in range(5_000):
        waiting.leave(waiting.join("b"))
        waiting.serve(waiting.join("c"))
    flows, tenants, entries = waiting.sizes()
    assert (flows, tenants) == (1, 3)
    assert entries < 100
    assert waiting.order.heads() == [stays]


def test_a_flow_keeps_its_place_in_the_orders_that_it_stays_in() -> None:
    waiting = Waiting()
    first = waiting.join("a")
    waiting.serve(waiting.join("b"), cost=5.0)
    waiting.join("b")
    flow = waiting._flows["a"]
    other = FairOrder({})
    flow.stand_in([other, waiting.order])
    assert waiting.order.heads() == other.heads() == [first]
    flow.stand_in([other])
    assert [ticket.demand.tenant for ticket in waiting.order.heads()] == ["b"]
    assert other.heads() == [first]
