"""The scheduler: bounds, no overtaking, changes of pools and routes under load, and its figures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from slotgate.admission import (
    Demand,
    Outcome,
    Priority,
    QueueLimits,
    QueueStatus,
    Refusal,
    Refused,
    SlotPool,
    Ticket,
)
from slotgate.admission.pool_reservation import LOOK_S
from tests.admission.simulation import SimulatedRequest, Simulation, ignore


def limits(
    max_queue: int = 10**6,
    max_queue_per_tenant: int = 10**6,
    queue_timeout_s: float = 10**9,
) -> QueueLimits:
    return QueueLimits(max_queue, max_queue_per_tenant, queue_timeout_s)


def refusal_of(simulation: Simulation, demand: Demand) -> Refused:
    with pytest.raises(Refused) as refused:
        simulation.scheduler.submit(demand, ignore)
    return refused.value


# -- grants


def test_a_free_slot_is_granted_before_submit_returns() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    request = simulation.submit()
    assert request.granted
    assert request.settled == 1
    assert request.lease.pool_name == "gpu"
    assert pool.free == 0


def test_requests_go_where_most_slots_are_free() -> None:
    simulation = Simulation(SlotPool("a", 2), SlotPool("b", 4))
    went = [simulation.submit().lease.pool_name for _ in range(6)]
    assert went == ["b", "b", "a", "b", "a", "b"]


def test_a_newcomer_does_not_overtake_waiting_tickets() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    running = simulation.submit()
    waiting = simulation.submit()
    simulation.release(running)
    newcomer = simulation.submit()
    assert waiting.granted
    assert not newcomer.granted


def test_a_slot_that_frees_goes_to_the_next_in_the_same_call() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    running, waiting = simulation.submit(), simulation.submit()
    running.lease.release(Outcome.FINISHED)
    assert waiting.granted
    assert pool.free == 0


def test_a_quarantined_slot_is_not_granted() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    running, waiting = simulation.submit(), simulation.submit()
    simulation.release(running, Outcome.ABANDONED)
    assert not waiting.granted
    pool.probe_answered(pool.probe_sent(2.0), frozenset(), 2.0)
    simulation.dispatch()
    assert waiting.granted


def test_a_grant_that_lost_the_race_with_its_owner_is_passed_on() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    running, leaving, waiting = [simulation.submit() for _ in range(3)]
    simulation.release(running)
    simulation.withdraw(leaving)
    assert leaving.granted, "a settled ticket stays as it is"
    simulation.release(leaving, Outcome.UNUSED)
    assert waiting.granted


def test_a_lease_gives_its_slots_back_once() -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    lease = simulation.submit(width=2).lease
    for outcome in Outcome:
        lease.release(outcome)
    assert (pool.free, pool.leased, len(pool.quarantine)) == (2, 0, 0)
    assert simulation.scheduler.leases == 0
    assert simulation.scheduler.granted == sum(pool.released.values()) == 1


# -- leaving


@pytest.mark.parametrize("free", [True, False])
def test_a_ticket_is_undone_if_on_dispatch_raises(free: bool) -> None:
    failures = itertools.count(1)
    failing = False

    def on_dispatch() -> None:
        if failing:
            raise RuntimeError(f"failure {next(failures)}")

    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool, on_dispatch=on_dispatch)
    running = None if free else simulation.submit()
    failing = True
    with pytest.raises(RuntimeError, match="failure 1"):
        simulation.scheduler.submit(Demand("t", "m"), ignore)
    failing = False
    if running is not None:
        simulation.release(running)
    assert (simulation.scheduler.depth, simulation.scheduler.leases, pool.free) == (0, 0, 1)
    assert simulation.scheduler.status().by_tenant == {}


def test_a_withdrawn_ticket_is_out_and_its_owner_is_called_once() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit()
    leaving = simulation.submit()
    for _ in range(2):
        simulation.withdraw(leaving)
    assert (leaving.settled, leaving.ticket.refusal) == (1, None)
    assert simulation.scheduler.depth == 0


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_withdrawal_leaves_the_order_of_the_others(position: int) -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit()
    waiting = [simulation.submit() for _ in range(3)]
    simulation.withdraw(waiting.pop(position))
    simulation.run(10)
    assert simulation.served[1:] == waiting


def test_a_wait_ends_after_the_queue_timeout_and_not_before() -> None:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(queue_timeout_s=60.0))
    simulation.submit(seconds=1000.0)
    simulation.run(1.0)
    early = simulation.submit()
    simulation.run(5.0)
    late = simulation.submit()
    simulation.run(54.9)
    assert early.ticket.queued
    simulation.run(0.1)
    assert early.ticket.refusal is Refusal.QUEUE_TIMEOUT
    assert late.ticket.queued
    simulation.run(5.0)
    assert late.ticket.refusal is Refusal.QUEUE_TIMEOUT
    assert simulation.scheduler.next_tick_at() is None


def test_draining_ends_every_wait_refuses_newcomers_and_lets_leases_run() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    running, waiting = simulation.submit(), simulation.submit()
    wide = Simulation(SlotPool("gpu", 2)).submit(width=2)
    simulation.scheduler.drain()
    assert waiting.ticket.refusal is Refusal.DRAINING
    assert refusal_of(simulation, Demand("t", "m")).refusal is Refusal.DRAINING
    assert running.lease.live
    assert wide.granted


# -- bounds


def test_a_full_queue_refuses_tickets_that_would_wait() -> None:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(max_queue=2))
    simulation.submit()
    waiting = [simulation.submit(f"t{number}") for number in range(2)]
    refused = refusal_of(simulation, Demand("late", "m"))
    assert refused.refusal is Refusal.QUEUE_FULL
    assert refused.retry_after_s is not None
    assert simulation.scheduler.depth == 2
    simulation.withdraw(waiting[0])
    assert simulation.submit("late").ticket.queued


def test_a_queue_of_no_places_still_grants_free_slots() -> None:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(max_queue=0))
    assert simulation.submit().granted
    assert refusal_of(simulation, Demand("t", "m")).refusal is Refusal.QUEUE_FULL


def test_the_places_of_one_model_are_not_those_of_another() -> None:
    simulation = Simulation(a=[SlotPool("a", 1)], b=[SlotPool("b", 1)], limits=limits(max_queue=1))
    for model in "aabb":
        simulation.submit(model=model)
    assert simulation.scheduler.depth == 2


def test_a_tenant_cannot_take_all_places() -> None:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(max_queue_per_tenant=2))
    simulation.submit("crowd")
    for _ in range(2):
        simulation.submit("crowd")
    assert refusal_of(simulation, Demand("crowd", "m")).refusal is Refusal.QUEUE_FULL
    assert simulation.submit("other").ticket.queued


def test_a_refused_ticket_leaves_nothing_behind() -> None:
    simulation = Simulation(SlotPool("gpu", 2), limits=limits(max_queue=1))
    simulation.submit(seconds=5.0)
    simulation.submit(seconds=9.0)
    waiting = simulation.submit("other")
    for width in (1, 2):
        refusal_of(simulation, Demand("late", "m", width, cost=1000.0))
    simulation.run(5.0)
    assert waiting.granted
    assert simulation.submit("late").ticket.queued
    assert simulation.scheduler.refused == {Refusal.QUEUE_FULL: 2}


# -- changes of pools and routes


def test_scenario_031_a_pool_that_grows_grants_at_once() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool)
    running, *waiting = [simulation.submit() for _ in range(4)]
    pool.total = 3
    simulation.dispatch()
    assert [request.granted for request in waiting] == [True, True, False]
    assert running.lease.live


def test_scenario_031_a_pool_that_shrinks_evicts_no_lease_and_grants_nothing_until_it_fits_again() -> None:
    pool = SlotPool("gpu", 3)
    simulation = Simulation(pool)
    running = [simulation.submit() for _ in range(3)]
    waiting = simulation.submit()
    pool.total = 1
    simulation.dispatch()
    assert all(request.lease.live for request in running)
    for request in running[:2]:
        simulation.release(request)
        assert not waiting.granted
    simulation.release(running[2])
    assert waiting.granted


def test_tickets_wait_for_a_pool_that_does_not_admit_and_get_it_when_it_does() -> None:
    pool = SlotPool("gpu", 1, admitting=False)
    simulation = Simulation(pool)
    waiting = simulation.submit()
    assert waiting.ticket.queued
    pool.admitting = True
    simulation.dispatch()
    assert waiting.granted


def test_a_pool_that_is_added_serves_tickets_that_wait_already() -> None:
    simulation = Simulation(SlotPool("first", 1))
    simulation.submit()
    waiting = simulation.submit()
    simulation.route(m=[SlotPool("first", 0), SlotPool("second", 1)])
    assert waiting.lease.pool_name == "second"


def test_a_pool_that_was_removed_serves_no_ticket_any_more() -> None:
    first, second = SlotPool("first", 1), SlotPool("second", 1)
    simulation = Simulation(first, second)
    running = [simulation.submit() for _ in range(2)]
    waiting = [simulation.submit() for _ in range(2)]
    simulation.route(m=[second])
    for request in running:
        simulation.release(request)
    assert [request.granted for request in waiting] == [True, False]
    assert waiting[0].lease.pool_name == "second"
    assert first.free == 1


def test_only_tickets_of_a_model_that_no_pool_serves_any_more_are_refused() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(a=[pool], b=[pool])
    simulation.submit(model="a")
    gone, stays = simulation.submit(model="a"), simulation.submit(model="b")
    simulation.route(b=[pool])
    assert gone.ticket.refusal is Refusal.NO_BACKEND
    assert stays.ticket.queued
    assert refusal_of(simulation, Demand("t", "a")).refusal is Refusal.NO_BACKEND


@pytest.mark.parametrize("how", ["absent", "no pools"])
def test_a_model_without_a_backend_is_refused(how: str) -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    if how == "no pools":
        simulation.route(nobody=[])
    refused = refusal_of(simulation, Demand("t", "nobody"))
    assert refused.refusal is Refusal.NO_BACKEND
    assert refused.retry_after_s is not None


def test_models_that_share_a_pool_share_it_fairly() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(a=[pool], b=[pool])
    for _ in range(100):
        simulation.submit("crowd", model="a")
    simulation.run(10)
    other = simulation.submit("other", model="b")
    assert simulation.run_until(lambda: other.granted) <= 1.0


def test_a_ticket_for_a_busy_pool_does_not_block_another_pool() -> None:
    busy, idle = SlotPool("busy", 1), SlotPool("idle", 1)
    simulation = Simulation(a=[busy], b=[busy, idle])
    simulation.submit(model="a")
    simulation.submit(model="a", priority=Priority.INTERACTIVE)
    assert simulation.submit(model="b", priority=Priority.BATCH).lease.pool_name == "idle"


def test_a_pool_named_twice_counts_once() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(m=[pool, pool])
    running, waiting = simulation.submit(), simulation.submit()
    simulation.release(running)
    assert waiting.granted


# -- what it says of itself


def test_the_status_counts_waiting_tickets_and_states_the_longest_wait() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    assert simulation.scheduler.status() == QueueStatus(depth=0, by_tenant={}, oldest_s=0.0)
    simulation.submit("a", seconds=100.0)
    simulation.run(10.0)
    for tenant in "aab":
        simulation.submit(tenant)
        simulation.run(1.0)
    assert simulation.scheduler.status() == QueueStatus(depth=3, by_tenant={"a": 2, "b": 1}, oldest_s=3.0)
    assert simulation.scheduler.leases_by_tenant == {"a": 1}
    assert repr(simulation.scheduler) == "<Scheduler 3 waiting, 1 leases, 1 granted>"


def test_the_estimated_wait_is_that_of_the_fair_order() -> None:
    """A quiet tenant beside a flood gets an estimate of its own wait."""
    simulation = Simulation(SlotPool("gpu", 2))
    assert simulation.scheduler.estimate_wait_s("m") > 0
    for _ in range(2):
        simulation.submit("flood", seconds=10.0)
    simulation.run(10.0)
    for _ in range(42):
        simulation.submit("flood", seconds=10.0)
    assert simulation.scheduler.estimate_wait_s("m", "flood") == pytest.approx(10.0 * (1 + 40 / 2))
    assert simulation.scheduler.estimate_wait_s("m", "quiet") == pytest.approx(10.0)
    assert simulation.scheduler.estimate_wait_s("nobody") > 0


def test_the_estimated_wait_of_a_ticket_is_right_within_a_factor_of_two_at_the_median() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    lengths = {"agent": 20.0, "chat": 4.0, "completion": 0.5}
    for tenant, seconds in lengths.items():
        for _ in range(3):
            simulation.submit(tenant, seconds=seconds)
    simulation.run(60.0)
    waiting: dict[str, list[SimulatedRequest]] = {
        tenant: [
            simulation.submit(tenant, seconds=seconds) for _ in range(20 if tenant == "completion" else 60)
        ]
        for tenant, seconds in lengths.items()
    }
    began = simulation.now
    told = [
        (request, simulation.scheduler.position(request.ticket)[1])
        for requests in waiting.values()
        for request in requests
        if not request.granted
    ]
    simulation.run(2000.0)
    ratios = sorted(
        wait / (request.granted_at - began)
        for request, wait in told
        if request.granted_at is not None and request.granted_at > began + 1
    )
    assert len(ratios) > 100
    assert 0.5 <= ratios[len(ratios) // 2] <= 2.0
    assert ratios[len(ratios) // 10] >= 0.25
    assert ratios[9 * len(ratios) // 10] <= 4.0


def test_the_position_is_that_of_the_fair_order() -> None:
    simulation = Simulation(SlotPool("gpu", 1))
    simulation.submit("flood")
    flood = [simulation.submit("flood") for _ in range(50)]
    quiet = simulation.submit("quiet")
    assert simulation.scheduler.position(flood[-1].ticket)[0] == 51
    assert simulation.scheduler.position(quiet.ticket)[0] <= 2


def test_the_next_tick_is_the_earliest_end_of_a_wait_or_of_a_phase() -> None:
    simulation = Simulation(SlotPool("gpu", 2), limits=limits(queue_timeout_s=60.0))
    assert simulation.scheduler.next_tick_at() is None
    simulation.run(5.0)
    simulation.submit(seconds=1000.0)
    simulation.submit(width=2)
    assert simulation.scheduler.next_tick_at() == 65.0
    simulation.run(1.0)
    simulation.submit()
    assert simulation.scheduler.next_tick_at() == 6.0 + LOOK_S, "a slot is held back from it"
    simulation.run(50.0)
    assert simulation.scheduler.next_tick_at() == 65.0
    simulation.run(100.0)
    assert simulation.scheduler.next_tick_at() is None


def test_a_batch_ticket_times_out_by_its_own_limit() -> None:
    timeouts = replace(limits(queue_timeout_s=10.0), batch_queue_timeout_s=30.0)
    simulation = Simulation(SlotPool("gpu", 1), limits=timeouts)
    simulation.submit(seconds=100.0)
    batch = simulation.submit("batch", priority=Priority.BATCH)
    interactive = simulation.submit()
    assert simulation.scheduler.next_tick_at() == 10.0
    simulation.run(10.0)
    assert (batch.ticket.refusal, interactive.ticket.refusal) == (None, Refusal.QUEUE_TIMEOUT)
    simulation.run(20.0)
    assert batch.ticket.refusal is Refusal.QUEUE_TIMEOUT


# -- second attempts


def again(simulation: Simulation, request: SimulatedRequest) -> Ticket:
    return simulation.scheduler.submit(request.demand, ignore, before=request.ticket)


def test_second_attempts_keep_their_places_in_the_order_of_arrival() -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    first, second = simulation.submit(), simulation.submit()
    third, fourth = simulation.submit(), simulation.submit()
    pool.admitting = False
    for request in (second, first):
        simulation.release(request, Outcome.ABANDONED)
    waiting = [again(simulation, second), again(simulation, first)]
    pool.restarted()
    pool.admitting = True
    simulation.dispatch()
    assert [ticket.queued for ticket in waiting] == [False, False]
    assert not third.granted
    assert waiting[1].lease is not None
    waiting[1].lease.release(Outcome.FINISHED)
    simulation.dispatch()
    assert (third.ticket.queued, fourth.ticket.queued) == (False, True)


def test_second_attempt_waits_as_long_as_a_new_request() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool, limits=limits(queue_timeout_s=10.0))
    request = simulation.submit()
    simulation.now = 100.0
    waiting = simulation.submit()
    pool.admitting = False
    simulation.release(request, Outcome.ABANDONED)
    simulation.now = 105.0
    second = again(simulation, request)
    simulation.now = 110.0
    simulation.scheduler.tick()
    assert (waiting.ticket.refusal, second.queued) == (Refusal.QUEUE_TIMEOUT, True)
    simulation.now = 115.0
    simulation.scheduler.tick()
    assert second.refusal is Refusal.QUEUE_TIMEOUT


def test_second_attempt_is_inside_whatever_the_bounds_say() -> None:
    pool = SlotPool("gpu", 1)
    simulation = Simulation(pool, limits=limits(max_queue=1, max_queue_per_tenant=1))
    request, waiting = simulation.submit(), simulation.submit()
    pool.admitting = False
    simulation.release(request, Outcome.ABANDONED)
    assert again(simulation, request).queued
    assert waiting.ticket.queued
