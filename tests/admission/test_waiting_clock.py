"""Waits do not use up their time while the model loads."""

from __future__ import annotations

from slotgate.admission import Refusal, SlotPool
from slotgate.admission.waiting_clock import WaitingClock
from tests.admission.simulation import Simulation
from tests.admission.test_scheduler import limits

TIMEOUT_S = 10.0


def loading(pool: SlotPool, until: float | None) -> None:
    pool.loading_until = until
    pool.admitting = until is None


def waiting(*pools: SlotPool) -> Simulation:
    return Simulation(*pools, limits=limits(queue_timeout_s=TIMEOUT_S))


def test_the_clock_stands_still_until_it_is_let_go() -> None:
    clock = WaitingClock()
    clock.stand_still(5.0, 100.0)
    shown = [clock.time(5.0), clock.time(50.0)]
    clock.stand_still(50.0, None)
    assert [*shown, clock.time(51.0)] == [5.0, 5.0, 6.0]
    assert clock.when(6.0) == 51.0


def test_the_clock_runs_on_at_the_bound_by_itself() -> None:
    clock = WaitingClock()
    clock.stand_still(5.0, 100.0)
    assert [clock.time(100.0), clock.time(103.0)] == [5.0, 8.0]
    assert clock.when(8.0) == 103.0


def test_standing_still_twice_is_once() -> None:
    clock = WaitingClock()
    for now in (5.0, 6.0, 7.0):
        clock.stand_still(now, 100.0)
    assert clock.time(50.0) == 5.0


def test_a_ticket_whose_model_loads_is_due_when_its_time_has_passed_without_that() -> None:
    pool = SlotPool("gpu", 1)
    simulation = waiting(pool)
    scheduler = simulation.scheduler
    running = simulation.submit()
    before = simulation.submit()
    simulation.now = 4.0
    loading(pool, 304.0)
    scheduler.route({"m": [pool]})
    during = simulation.submit()
    simulation.now = 100.0
    scheduler.tick()
    assert (before.ticket.queued, during.ticket.queued) == (True, True)

    loading(pool, None)
    scheduler.route({"m": [pool]})
    assert scheduler.next_tick_at() == 106.0
    simulation.now = 106.0
    scheduler.tick()
    assert (before.ticket.refusal, during.ticket.queued) == (Refusal.QUEUE_TIMEOUT, True)
    simulation.now = 110.0
    scheduler.tick()
    assert during.ticket.refusal is Refusal.QUEUE_TIMEOUT
    simulation.release(running)


def test_a_model_that_never_loads_is_waited_for_until_the_bound_and_the_timeout() -> None:
    pool = SlotPool("gpu", 0, admitting=False)
    pool.loading_until = 300.0
    simulation = waiting(pool)
    request = simulation.submit()
    simulation.now = 309.0
    simulation.scheduler.tick()
    queued = request.ticket.queued
    simulation.now = 310.0
    simulation.scheduler.tick()
    assert (queued, request.ticket.refusal) == (True, Refusal.QUEUE_TIMEOUT)


def test_the_wait_is_for_a_slot_if_another_backend_of_the_model_serves() -> None:
    busy, coming = SlotPool("busy", 1), SlotPool("coming", 1)
    loading(coming, 300.0)
    simulation = waiting(busy, coming)
    simulation.submit()
    request = simulation.submit()
    assert request.ticket.queued
    assert simulation.scheduler.next_tick_at() == TIMEOUT_S


def test_the_scheduler_states_since_when_tickets_of_each_model_wait() -> None:
    pool = SlotPool("gpu", 0, admitting=False)
    simulation = Simulation(pool, other=[pool])
    simulation.now = 3.0
    simulation.submit()
    simulation.now = 5.0
    simulation.submit()
    assert simulation.scheduler.waiting_since() == {"m": 3.0}


def test_draining_keeps_the_tickets_that_wait_for_a_load_until_they_are_refused() -> None:
    loading, ready = SlotPool("loading", 1, admitting=False), SlotPool("ready", 1)
    loading.loading_until = 300.0
    simulation = Simulation(m=[loading], other=[ready])
    simulation.submit(model="other")
    waits_for_slot = simulation.submit(model="other")
    served, still_waits = simulation.submit(), simulation.submit()
    simulation.scheduler.drain()
    assert waits_for_slot.ticket.refusal is Refusal.DRAINING
    loading.admitting, loading.loading_until = True, None
    simulation.route(m=[loading], other=[ready])
    assert served.granted
    simulation.scheduler.refuse_waiting()
    assert still_waits.ticket.refusal is Refusal.DRAINING
    assert served.lease.live
