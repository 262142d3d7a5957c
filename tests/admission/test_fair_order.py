"""Shares between tenants, arrival order within one, and batch work that always gets on."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import pairwise

import pytest

from slotgate.admission import Outcome, Priority, SlotPool
from slotgate.admission.fair_order import BATCH_TURN
from tests.admission.simulation import SimulatedRequest, Simulation, WrongGuesses

SIZES = [1.0, 5.0, 0.5, 2.0, 8.0]


def backlog(simulation: Simulation, tenant: str, work_s: float, *, seconds: float) -> None:
    """Submit requests of one tenant that add up to this many seconds of work."""
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


def test_a_newcomer_is_not_delayed_by_work_at_other_backends() -> None:
    """A virtual time that both models shared would be far ahead when the newcomer comes."""
    simulation = Simulation(a=[SlotPool("slow", 1)], b=[SlotPool("fast", 4)])
    for _ in range(1000):
        simulation.submit("crowd", model="a", seconds=2.0)
    for _ in range(4):
        simulation.keep_busy("elsewhere", model="b", seconds=0.1, cost=1000.0)
    simulation.run(31.0)
    newcomer = simulation.submit("newcomer", model="a", seconds=2.0)
    assert simulation.run_until(lambda: newcomer.granted) <= 2.0


@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("slots", [1, 4])
def test_a_later_tenant_gets_its_share_from_its_first_requests_on(slots: int, factor: float) -> None:
    """A newcomer must not begin behind the guesses, because it would have to wait for all errors in them."""
    simulation = Simulation(SlotPool("gpu", slots), guesses=WrongGuesses(factor))
    for _ in range(300):
        simulation.submit("crowd")
    simulation.run(40.0 / slots)
    before = len(simulation.served)
    for _ in range(120):
        simulation.submit("later")
    simulation.run(80.0 / slots + 0.5)
    first = simulation.order()[before : before + 80]
    assert Counter(first)["later"] == pytest.approx(40, abs=1 + slots), first


def test_max_tokens_does_not_move_the_order() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    for _ in range(20):
        simulation.submit("asks for much", cost=32_000.0)
        simulation.submit("asks for little", cost=1.0)
    simulation.run(20.0)
    assert Counter(simulation.order())["asks for much"] == pytest.approx(10, abs=1)


def test_a_wide_newcomer_waits_for_running_requests_and_held_slots_but_not_for_a_crowd() -> None:
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


def test_a_lease_that_takes_longer_than_guessed_counts_against_its_tenant_while_it_runs() -> None:
    """A charge at the end would be too late: a tenant with long requests would get the other slots too."""
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit("long", seconds=3600.0)
    simulation.submit("short")
    for _ in range(30):
        simulation.submit("long")
        simulation.submit("short")
    simulation.run(20.5)
    assert Counter(simulation.order()) == {"long": 2, "short": 20} or Counter(simulation.order()) == {
        "long": 1,
        "short": 21,
    }


def test_a_tenant_that_asked_for_long_requests_before_is_guessed_to_do_so_again() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for name, seconds in {"long": 50.0, "short": 1.0}.items():
        simulation.submit(name, seconds=seconds)
    simulation.run(60.0)
    for _ in range(20):
        simulation.submit("long", seconds=50.0)
    for _ in range(20):
        simulation.submit("short")
    simulation.run(10.0)
    assert Counter(simulation.order()[2:])["long"] <= 2


def test_wide_requests_cost_their_width() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    for _ in range(100):
        simulation.submit("wide", width=4)
        simulation.submit("narrow")
    simulation.run(50.0)
    served = Counter(simulation.order())
    assert served["narrow"] == pytest.approx(4 * served["wide"], rel=0.1)


def test_an_abandoned_slot_is_paid_for_until_it_is_idle() -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    leaving = simulation.submit("leaves", seconds=100.0, width=2)
    simulation.run(1.0)
    simulation.release(leaving, Outcome.ABANDONED)
    simulation.run(4.0)
    pool.probe_answered(pool.probe_sent(simulation.now), frozenset(), simulation.now)
    simulation.run(7.0)
    assert simulation.scheduler.slot_seconds == {"leaves": 10.0}


@pytest.mark.parametrize("change", ["stops admitting", "is gone"])
def test_a_quarantined_slot_that_no_other_request_could_get_costs_nothing(change: str) -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    simulation.release(simulation.submit("leaves", seconds=100.0), Outcome.ABANDONED)
    simulation.run(2.0)
    if change == "is gone":
        simulation.route(m=[SlotPool("other", 1)])
    else:
        pool.admitting = False
        simulation.route(m=[pool])
    simulation.run(3600.0)
    pool.restarted()
    assert simulation.scheduler.slot_seconds == {"leaves": 2.0}


def test_a_lease_that_was_never_used_costs_nothing() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    running = simulation.submit("other", seconds=1.0)
    unlucky = simulation.submit("unlucky", seconds=100.0)
    again = [simulation.submit("unlucky") for _ in range(2)]
    simulation.submit("other")
    simulation.release(running)
    assert unlucky.granted
    simulation.run(30.0)
    simulation.release(unlucky, Outcome.UNUSED)
    assert simulation.scheduler.slot_seconds["unlucky"] == 0
    assert again[0].granted


@pytest.mark.parametrize("way", ["keys", "tickets", "models", "cancelling", "priorities", "max_tokens"])
def test_splitting_lying_and_cancelling_gain_nothing(way: str) -> None:
    """A tenant that tries each way, beside an honest one. Half of the slot time is due to each."""
    pool = SlotPool("gpu", 4)
    simulation = Simulation(m=[pool], other=[pool])
    models = itertools.cycle(["m", "other"] if way == "models" else ["m"])
    priorities = itertools.cycle(Priority if way == "priorities" else [Priority.INTERACTIVE])

    def ask(tenant: str) -> SimulatedRequest:
        sly = tenant == "sly"
        return simulation.submit(
            tenant,
            model=next(models) if sly else "m",
            priority=next(priorities) if sly else Priority.INTERACTIVE,
            cost=1.0 if way == "max_tokens" and sly else 1000.0,
            then=lambda: ask(tenant),
        )

    waiting = [ask("sly") for _ in range(40 if way in {"tickets", "keys"} else 8)]
    for _ in range(8):
        ask("honest")

    def ask_again() -> None:
        for number, request in enumerate(waiting):
            if request.ticket.queued:
                simulation.withdraw(request)
                waiting[number] = ask("sly")
        simulation.at(simulation.now + 0.3, ask_again)

    if way == "cancelling":
        ask_again()
    simulation.run(200.0)
    share = simulation.work_of("sly") / (simulation.work_of("sly") + simulation.work_of("honest"))
    assert share <= 0.52


def test_a_tenant_that_can_use_two_backends_gets_no_second_share() -> None:
    both, shared = SlotPool("both", 1), SlotPool("shared", 1)
    simulation = Simulation(wide=[both, shared], narrow=[shared])
    for _ in range(200):
        simulation.submit("two backends", model="wide")
        simulation.submit("one backend", model="narrow")
    simulation.run(100.0)
    assert simulation.work_of("one backend") == pytest.approx(100, abs=2)
    assert simulation.work_of("two backends") == pytest.approx(100, abs=2)


def test_a_newcomer_does_not_get_ahead_at_a_pool_where_no_tenant_is_behind() -> None:
    """`slow` waits for one of two pools and has had little there. A newcomer may use both."""
    first, second = SlotPool("first", 1), SlotPool("second", 4)
    simulation = Simulation(both=[first, second], one=[first], many=[second])
    for _ in range(2):
        simulation.keep_busy("slow", model="one", seconds=5.0)
        simulation.keep_busy("slower", model="one", seconds=5.0)
    for _ in range(12):
        simulation.keep_busy("busy", model="many")
    simulation.run(100.0)
    before = simulation.work_of("busy")
    for _ in range(12):
        simulation.keep_busy("newcomer", model="both")
    simulation.run(50.0)
    assert simulation.work_of("busy") - before >= 80, "half of the second pool"


def test_clocks_go_along_when_pools_are_connected_and_separated() -> None:
    first, second = SlotPool("first", 1), SlotPool("second", 1)
    simulation = Simulation(a=[first], b=[second])
    for model in "ab":
        for _ in range(100):
            simulation.submit(f"crowd {model}", model=model)
    simulation.run(20.0)
    simulation.route(a=[first, second], b=[second])
    simulation.run(20.0)
    simulation.route(a=[first], b=[second])
    before = len(simulation.served)
    simulation.submit("newcomer", model="b")
    simulation.run(4.0)
    assert "newcomer" in simulation.order()[before : before + 4]
    simulation.run(400.0)
    assert simulation.scheduler.depth == 0
    assert not simulation.scheduler._accounts.open_charges


def test_short_requests_with_pauses_save_up_no_claim() -> None:
    """A client that pauses between its requests is always behind the others, but is owed one request only."""
    simulation = Simulation(SlotPool("gpu", 2))

    def chat() -> None:
        simulation.submit("quiet", then=lambda: simulation.at(simulation.now + 2.0, chat))

    chat()
    for _ in range(8):
        simulation.keep_busy("busy", seconds=5.0)
    simulation.run(1000.0)
    before = simulation.work_of("quiet")
    for _ in range(300):
        simulation.submit("quiet")
    simulation.run(100.0)
    assert simulation.work_of("quiet") - before == pytest.approx(100, abs=20)


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
def test_batch_gets_a_ninth_of_the_slot_time_under_constant_interactive_load(
    slots: int, seconds: float
) -> None:
    """The share is no less with quick requests and no more with slow ones."""
    simulation = Simulation(SlotPool("gpu", slots))
    for _ in range(2 * slots):
        simulation.keep_busy("chatting", seconds=seconds)
    for _ in range(100):
        simulation.submit("batch", seconds=seconds, priority=Priority.BATCH)
    simulation.run(seconds * 90 * (BATCH_TURN + 1) / slots)
    order = simulation.order()
    positions = [position for position, tenant in enumerate(order) if tenant == "batch"]
    assert positions[0] <= 2 * slots + BATCH_TURN
    assert max(after - before for before, after in pairwise(positions)) <= 2 * (BATCH_TURN + 1)
    assert len(positions) == pytest.approx(90, abs=3)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 5.0, 50.0])
def test_batch_gets_a_ninth_whatever_the_length_of_its_requests(seconds: float) -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for _ in range(6):
        simulation.keep_busy("chatting", seconds=1.0)
    for _ in range(4):
        simulation.keep_busy("batch", seconds=seconds, priority=Priority.BATCH)
    simulation.run(9000.0)
    assert simulation.work_of("batch") / 18000 == pytest.approx(1 / 9, rel=0.12)


@pytest.mark.slow
def test_a_tenant_gains_nothing_by_declaring_its_requests_as_batch() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    for number in range(12):
        for _ in range(2):
            priority = Priority.BATCH if number == 0 else Priority.INTERACTIVE
            simulation.keep_busy(f"t{number}", seconds=4.0, priority=priority)
    simulation.run(3000.0)
    assert 0.005 <= simulation.work_of("t0") / 12000 <= 1 / 12


def test_batch_work_of_a_tenant_counts_against_its_interactive_requests() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for _ in range(4):
        simulation.keep_busy("both", priority=Priority.BATCH)
        simulation.keep_busy("both")
        simulation.keep_busy("one")
    simulation.run(500.0)
    assert simulation.work_of("both") == pytest.approx(500, rel=0.03)


def test_batch_gets_all_slots_while_no_interactive_request_waits() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for _ in range(4):
        simulation.keep_busy("batch", priority=Priority.BATCH)
    simulation.run(100.0)
    assert simulation.work_of("batch") >= 200
    late = simulation.submit("late")
    simulation.run(1.0)
    assert late.granted


def test_batch_work_is_shared_fairly_among_tenants_too() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for name, seconds in zip("abc", SIZES, strict=False):
        for _ in range(int(1000 / seconds)):
            simulation.submit(name, seconds=seconds, priority=Priority.BATCH)
    simulation.run(700)
    work = [simulation.work_of(name) for name in "abc"]
    assert max(work) <= 1.03 * min(work), work


# -- bookkeeping


def test_tenants_that_come_once_are_forgotten() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    for number in range(3_000):
        simulation.release(simulation.submit(f"t{number}"))
    [pool_queue] = simulation.scheduler._pool_queues.values()
    assert len(pool_queue.order.accounts) < 2_000


def test_kinds_of_tickets_that_come_once_are_forgotten() -> None:
    """Clients choose widths and sizes, so there can be any number of kinds."""
    simulation = Simulation(SlotPool("gpu", 1000))
    running = simulation.submit(width=1000)
    for width in range(1, 1000):
        simulation.withdraw(simulation.submit(width=width))
    simulation.release(running)
    simulation.submit(width=1000)
    simulation.submit()
    assert len(simulation.scheduler._model_queues["m"]._rankings) < 50


def test_a_tenant_that_is_ahead_is_not_forgotten_when_many_others_come() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit("greedy", seconds=10**6)
    simulation.run(10**6)
    order = next(iter(simulation.scheduler._pool_queues.values())).order
    order._last_served = [None, None]
    for number in range(3_000):
        order.account(f"t{number}")
    assert order.accounts["greedy"].clocks[0].settled == 10**6


def test_rankings_do_not_grow_with_tickets_that_come_and_go() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit("running", seconds=10**6)
    stays = simulation.submit("stays")
    for _ in range(2_000):
        simulation.withdraw(simulation.submit("goes"))
    queue = simulation.scheduler._model_queues["m"]
    assert sum(map(len, queue._rankings.values())) < 100
    assert len(queue.settled[0]) < 100
    assert stays.ticket.queued
