"""Wide tickets are granted whole or not at all, get their slots in the end, and idle no slot for long."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from slotgate.admission import (
    Demand,
    Lease,
    Outcome,
    Priority,
    QueueLimits,
    Refusal,
    Refused,
    SlotPool,
    Ticket,
)
from slotgate.admission.pool_reservation import FIRST_HOLD_S, PoolReservation, Reach, reach
from tests.admission.simulation import Simulation, ignore


def ticket_of(width: int) -> Ticket:
    return Ticket(Demand("t", "m", width), seq=1, enqueued_at=0.0, on_settled=ignore)


# -- the phases


def test_a_reservation_without_a_ticket_holds_no_slots_and_needs_no_timer() -> None:
    reservation = PoolReservation()
    assert reservation.advance(100.0) == 0
    assert not reservation.holds(100.0)
    assert reservation.next_change_at() is None


def test_idle_time_is_used_up_then_the_pool_yields_for_four_times_as_long() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 10.0, ready_at=11.0)
    phases = []
    now = 10.0
    while now < 60.0:
        reservation.idle_slots = 1 if reservation.holds(now) else 0
        phases.append((round(now), reservation.holds(now)))
        at = reservation.next_change_at()
        assert at is not None
        assert at > now
        now = at
        reservation.advance(now)
    changes = [phases[0], *(now for before, now in pairwise(phases) if before[1] != now[1])]
    assert changes == [(10, True), (12, False), (20, True), (24, False), (40, True), (48, False)]


def test_time_in_which_nothing_is_held_back_is_free() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 0.0, ready_at=1.0)
    assert reservation.advance(1000.0) == 0
    assert reservation.holds(1000.0)
    reservation.idle_slots = 3
    assert reservation.advance(1001.0) == 3.0


def test_a_hold_may_last_as_long_as_the_width_is_expected_to_need() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 0.0, ready_at=40.0)
    reservation.idle_slots = 1
    reservation.advance(59.0)
    assert reservation.holds(59.0)
    reservation.advance(60.0)
    assert not reservation.holds(60.0)


def test_the_next_ticket_begins_with_a_short_hold() -> None:
    reservation = PoolReservation()
    for began in (0.0, 200.0):
        reservation.begin(ticket_of(2), began, ready_at=began)
        assert reservation.holds(began)
        reservation.idle_slots = 1
        reservation.advance(began + FIRST_HOLD_S)
        assert not reservation.holds(began + FIRST_HOLD_S)
        reservation.end()


def test_a_reservation_shows_what_it_does() -> None:
    reservation = PoolReservation()
    assert repr(reservation) == "<PoolReservation of no ticket>"
    reservation.begin(ticket_of(2), 0.0, ready_at=0.0)
    assert repr(reservation) == "<PoolReservation holds for <Ticket #1 t/m x2 queued>>"
    reservation.idle_slots = 1
    reservation.advance(FIRST_HOLD_S)
    assert "yields" in repr(reservation)


# -- when a width will be there


def running_for(pool: SlotPool, *expected: float) -> None:
    for seconds in expected:
        pool.take(
            Lease(
                Demand("t", "m"),
                pool_name=pool.name,
                clock=lambda: 0.0,
                on_release=lambda _: None,
                expected_s=seconds,
            )
        )


def test_a_width_is_there_when_enough_leases_have_ended() -> None:
    pool = SlotPool("gpu", 4)
    running_for(pool, 5.0, 9.0, 2.0)
    assert reach(pool, Demand("t", "m", 3), 1.0) == Reach(5.0, 0)
    assert reach(pool, Demand("t", "m", 2), 1.0) == Reach(2.0, 0)
    assert reach(pool, Demand("t", "m", 1), 1.0) == Reach(1.0, 0)


def test_a_lease_that_overruns_its_guess_is_expected_to_do_so_for_as_long_again() -> None:
    pool = SlotPool("gpu", 1)
    running_for(pool, 5.0)
    assert [reach(pool, Demand("t", "m"), now) for now in (4.0, 6.0, 65.0)] == [
        Reach(5.0, 0),
        Reach(7.0, 0),
        Reach(125.0, 0),
    ]


@pytest.mark.parametrize("taken_by", ["foreign work", "quarantine"])
def test_slots_that_no_lease_gives_back_are_out_of_reach(taken_by: str) -> None:
    pool = SlotPool("gpu", 2)
    if taken_by == "foreign work":
        pool.foreign = 1
    else:
        simulation = Simulation(pool)
        simulation.release(simulation.submit(), Outcome.ABANDONED)
    running_for(pool, 5.0)
    assert reach(pool, Demand("t", "m", 2), 1.0) is None


# -- what a wide ticket gets


def test_a_wide_ticket_gets_all_its_slots_at_once_or_waits() -> None:
    pool = SlotPool("gpu", 4)
    simulation = Simulation(pool)
    first = simulation.submit(seconds=1.5)
    wide = simulation.submit(width=4)
    assert (simulation.served, pool.leased) == ([first], 1)
    simulation.run(1.5)
    assert (simulation.served, pool.leased) == ([first, wide], 4)


def test_a_wide_ticket_that_fits_is_granted_at_once() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    assert simulation.submit(width=3).granted
    assert simulation.submit(width=1).granted


def test_freed_slots_are_held_for_the_wide_ticket_that_comes_first() -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    for seconds in (0.5, 1.5):
        simulation.submit(seconds=seconds)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.run(1.0)
    assert (pool.free, narrow.granted) == (1, False)
    simulation.run(0.5)
    assert (wide.granted, narrow.granted) == (True, False)


def test_narrow_tickets_that_came_before_a_wide_one_go_before_it() -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    for _ in range(2):
        simulation.submit()
    before = [simulation.submit() for _ in range(4)]
    wide = simulation.submit(width=2)
    after = simulation.submit()
    simulation.run(10)
    assert simulation.served[2:] == [*before, wide, after]


def test_a_hold_that_comes_to_nothing_yields_to_narrow_tickets() -> None:
    """All requests are guessed to take two seconds, so the hold may last one and a half times as long."""
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    simulation.submit(seconds=60.0)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.run(2.9)
    assert (narrow.granted, wide.granted) == (False, False)
    simulation.run(0.1)
    assert (narrow.granted, wide.granted) == (True, False)


def test_while_the_pool_yields_slots_that_come_free_are_granted_too() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit(seconds=60.0)
    simulation.submit(width=2)
    for _ in range(40):
        simulation.submit(seconds=0.5)
    simulation.run(3.0 + 4 * 3.0)
    assert len(simulation.served) - 1 in (24, 25)


def test_a_request_that_ends_before_the_width_is_free_passes() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for tenant, seconds in {"long": 20.0, "short": 1.0}.items():
        simulation.submit(tenant, seconds=seconds)
    simulation.run(20.0)
    running = simulation.submit("long", seconds=20.0)
    wide = simulation.submit("wide", width=2)
    passing = [simulation.submit("short") for _ in range(30)]
    simulation.run_until(lambda: wide.granted)
    assert simulation.now == running.lease.granted_at + 20.0
    assert 18 <= sum(request.granted for request in passing) <= 20


def test_a_request_that_leaves_enough_slots_for_the_width_passes() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    for _ in range(3):
        simulation.submit("long", seconds=20.0)
    simulation.run(20.0)
    for _ in range(3):
        simulation.submit("long", seconds=20.0)
    wide = simulation.submit("wide", width=2)
    assert not wide.granted
    passes = simulation.submit("long", seconds=20.0)
    assert passes.granted
    simulation.run(20.0)
    assert wide.granted


def test_no_slot_is_held_for_a_width_that_is_not_there_before_the_wait_ends() -> None:
    limits = QueueLimits(100, 100, queue_timeout_s=10.0)
    simulation = Simulation(SlotPool("gpu", 2), limits=limits)
    simulation.submit("long", seconds=30.0)
    simulation.run(30.0)
    simulation.submit("long", seconds=30.0)
    wide = simulation.submit("wide", width=2)
    assert simulation.submit("long", seconds=30.0).granted
    simulation.run(10.0)
    assert wide.ticket.refusal is Refusal.QUEUE_TIMEOUT
    assert simulation.scheduler.slot_seconds["wide"] == 0


def test_time_that_is_held_back_from_others_is_paid_for_even_without_a_grant() -> None:
    limits = QueueLimits(100, 100, queue_timeout_s=10.0)
    simulation = Simulation(SlotPool("gpu", 3), limits=limits)
    simulation.submit("long", seconds=60.0)
    wide = simulation.submit("wide", width=3)
    simulation.submit("chat", seconds=5.0)
    simulation.run(10.0)
    assert wide.ticket.refusal is Refusal.QUEUE_TIMEOUT
    assert simulation.scheduler.slot_seconds["wide"] == pytest.approx(2 * 3.0)
    [pool_queue] = simulation.scheduler._pool_queues.values()
    assert pool_queue.order.accounts["wide"].clocks[0].settled >= 2 * 3.0, (
        "so it gains nothing by asking again"
    )


class Neighbours:
    """Four slots: one long stream, three chat clients, and one client that asks for `n` = 4 in a loop."""

    def __init__(self, *, wide: bool) -> None:
        limits = QueueLimits(256, 64, queue_timeout_s=60.0)
        self.simulation = Simulation(SlotPool("gpu", 4), limits=limits)
        self.waits: list[float] = []
        self.answers = 0
        self.simulation.submit("stream", seconds=10_000.0)
        for _ in range(3):
            self.chat()
        self.simulation.run(10.0)
        if wide:
            self.ask_widely()
        self.answers = 0
        self.simulation.run(600.0)

    def chat(self) -> None:
        asked_at = self.simulation.now

        def answered() -> None:
            self.answers += 1
            assert request.granted_at is not None
            self.waits.append(request.granted_at - asked_at)
            self.chat()

        request = self.simulation.submit("chat", seconds=1.0, then=answered)

    def ask_widely(self) -> None:
        request = self.simulation.submit("wide", width=4)

        def look() -> None:
            if not request.ticket.queued:
                self.ask_widely()
            else:
                self.simulation.at(self.simulation.now + 1.0, look)

        look()


def test_a_wide_request_behind_a_stream_costs_its_neighbours_next_to_nothing() -> None:
    alone, beside = Neighbours(wide=False), Neighbours(wide=True)
    assert beside.answers >= 0.95 * alone.answers
    assert max(beside.waits) <= 2.0


@pytest.mark.parametrize("longest", [0.5, 3.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize("width", [2, 4])
def test_a_wide_ticket_gets_there_within_four_of_the_longest_requests(width: int, longest: float) -> None:
    """Narrow requests keep the pool so busy that its slots are never all empty by chance."""
    pool = SlotPool("gpu", 4)
    simulation = Simulation(pool)
    for number in range(12):
        simulation.keep_busy(f"narrow{number}", seconds=longest * (1 + number % 4) / 4)
    simulation.run(longest)
    wide = simulation.submit("wide", width=width)
    assert simulation.run_until(lambda: wide.granted, within=1e5) <= 4 * longest + 4 * FIRST_HOLD_S


def test_many_wide_tickets_do_not_starve_narrow_ones_nor_the_other_way_round() -> None:
    simulation = Simulation(SlotPool("gpu", 4))
    for _ in range(500):
        simulation.submit("narrow")
        simulation.submit("wide", cost=4.0, width=4)
    simulation.run(200)
    served, held = Counter(simulation.order()), simulation.scheduler.slot_seconds
    assert held["narrow"] == pytest.approx(held["wide"], rel=0.03), "slots that are held idle are paid for"
    assert served["narrow"] + 4 * served["wide"] > 0.8 * 4 * 200


def test_no_slot_is_held_longer_than_the_longest_request_runs() -> None:
    pool = SlotPool("gpu", 4)
    simulation = Simulation(pool)
    for number in range(8):
        simulation.keep_busy(f"narrow{number}", seconds=10.0 + number)
    simulation.run(20)
    simulation.submit("wide", width=4)
    idle_since: float | None = None
    for _ in range(2000):
        simulation.run(0.1)
        idle_since = None if pool.free == 0 else idle_since or simulation.now
        assert idle_since is None or simulation.now - idle_since <= 18.0


def test_a_withdrawn_wide_ticket_gives_up_the_slots_held_for_it() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit(seconds=60.0)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.withdraw(wide)
    assert narrow.granted
    assert simulation.scheduler.next_tick_at() is None or simulation.scheduler.depth == 0


def test_a_pool_stays_reserved_for_its_ticket_when_others_come() -> None:
    """Otherwise every newcomer would begin with a short hold, and the long ones would never be reached."""
    simulation = Simulation(SlotPool("gpu", 2))
    running = simulation.submit("old", seconds=60.0)
    first = simulation.submit("old", width=2)
    simulation.run(FIRST_HOLD_S)
    second = simulation.submit("new", width=2)
    simulation.release(running)
    assert (first.granted, second.granted) == (True, False)


def test_a_ticket_holds_one_pool_only() -> None:
    simulation = Simulation(SlotPool("first", 2), SlotPool("second", 2))
    running = [simulation.submit(seconds=60.0) for _ in range(4)]
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    for request in running[:2]:
        simulation.release(request)
    assert [request.lease.pool_name for request in running[:2]] == ["first", "second"]
    assert not wide.granted
    assert narrow.granted


def test_a_ticket_that_holds_one_pool_takes_the_slots_of_another_that_has_them_first() -> None:
    first, second = SlotPool("first", 2), SlotPool("second", 2)
    simulation = Simulation(first, second)
    running = [simulation.submit(seconds=60.0) for _ in range(4)]
    at_first, *others = sorted(running, key=lambda request: request.lease.pool_name)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.release(at_first)
    assert (narrow.granted, wide.granted, first.free) == (False, False, 1), "it holds the first pool"
    for request in others[1:]:
        simulation.release(request)
    assert (narrow.granted, wide.granted) == (True, False)
    simulation.release(narrow)
    assert wide.lease.pool_name == "second"
    assert simulation.submit().lease.pool_name == "first"


def test_a_pool_that_was_held_is_given_on_at_once_when_its_ticket_is_served_elsewhere() -> None:
    first, second = SlotPool("first", 2), SlotPool("second", 2)
    simulation = Simulation(first, second)
    running = [simulation.submit(seconds=60.0, width=2), *(simulation.submit(seconds=60.0) for _ in range(2))]
    both, one, _ = running
    wide, narrow = simulation.submit(width=2), simulation.submit()
    simulation.release(one)
    assert (wide.granted, narrow.granted) == (False, False)
    simulation.release(both)
    assert wide.lease.pool_name == both.lease.pool_name
    assert narrow.lease.pool_name == one.lease.pool_name


# -- where a wide ticket can be served


def test_a_ticket_wider_than_any_pool_is_refused_when_it_comes() -> None:
    simulation = Simulation(SlotPool("gpu", 2), SlotPool("small", 1))
    with pytest.raises(Refused) as refused:
        simulation.submit(width=3)
    assert refused.value.refusal is Refusal.NO_BACKEND
    assert simulation.scheduler.depth == 0


def test_a_ticket_waits_for_a_pool_that_is_loading_and_may_be_wide_enough() -> None:
    small, loading = SlotPool("small", 1), SlotPool("loading", 0, admitting=False)
    simulation = Simulation(small, loading)
    wide = simulation.submit(width=3)
    assert wide.ticket.queued
    assert simulation.submit().granted
    loading.total, loading.admitting = 4, True
    simulation.dispatch()
    assert wide.lease.pool_name == "loading"


def test_a_pool_that_turns_out_too_small_after_loading_ends_the_wait() -> None:
    loading = SlotPool("loading", 0, admitting=False)
    simulation = Simulation(loading)
    wide = [simulation.submit(width=3) for _ in range(3)]
    narrow = simulation.submit()
    loading.total, loading.admitting = 2, True
    simulation.dispatch()
    assert [request.ticket.refusal for request in wide] == [Refusal.NO_BACKEND] * 3
    assert narrow.granted


def test_a_wide_ticket_is_not_refused_while_another_pool_may_become_wide_enough() -> None:
    loading, other = SlotPool("loading", 0, admitting=False), SlotPool("other", 0, admitting=False)
    simulation = Simulation(loading, other)
    wide = simulation.submit(width=3)
    loading.total, loading.admitting = 2, True
    simulation.dispatch()
    assert wide.ticket.queued
    other.total, other.admitting = 3, True
    simulation.dispatch()
    assert wide.lease.pool_name == "other"


@pytest.mark.parametrize("change", ["left the routes", "stopped admitting", "shrank"])
def test_a_ticket_whose_reserved_pool_is_gone_keeps_its_place_and_goes_elsewhere(change: str) -> None:
    first, second = SlotPool("first", 2), SlotPool("second", 2)
    simulation = Simulation(first, second)
    running = [simulation.submit(seconds=60.0) for _ in range(4)]
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    if change == "left the routes":
        simulation.route(m=[second], other=[first])
    elif change == "stopped admitting":
        first.admitting = False
        simulation.dispatch()
    else:
        first.total = 1
        simulation.dispatch()
    for request in running:
        simulation.release(request)
    assert wide.lease.pool_name == "second"
    assert narrow.granted == (change == "shrank")


def test_a_ticket_prefers_the_pool_where_most_slots_are_free_already() -> None:
    full, half = SlotPool("full", 2), SlotPool("half", 2)
    simulation = Simulation(full)
    for _ in range(2):
        simulation.submit(seconds=60.0)
    simulation.route(m=[full, half])
    short = simulation.submit(seconds=1.0)
    wide = simulation.submit(width=2)
    simulation.release(short)
    assert wide.lease.pool_name == "half"


def test_a_wide_batch_ticket_gets_there_under_constant_interactive_load() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    for _ in range(4):
        simulation.keep_busy("chatting")
    wide = simulation.submit("batch", width=2, priority=Priority.BATCH)
    assert simulation.run_until(lambda: wide.granted) <= 10.0
