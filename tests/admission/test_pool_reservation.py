"""Wide tickets: granted whole or not at all, sure to get there, and no slot idles for long for them."""

from collections import Counter

import pytest

from slotgate.admission import Demand, Priority, Refusal, Refused, SlotPool, Ticket
from slotgate.admission.pool_reservation import FIRST_HOLD_S, YIELD_S, PoolReservation
from tests.admission.simulation import Simulation, ignore


def ticket_of(width: int) -> Ticket:
    return Ticket(Demand("t", "m", width), seq=1, enqueued_at=0.0, on_settled=ignore)


# -- the phases


def test_a_reservation_for_nobody_holds_nothing_and_wants_no_timer() -> None:
    reservation = PoolReservation()
    reservation.advance(100.0)
    assert not reservation.holds
    assert reservation.next_change_at() is None


def test_holding_and_yielding_take_turns_and_each_hold_is_twice_as_long() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 10.0)
    phases = [(10.0, reservation.holds)]
    for _ in range(5):
        at = reservation.next_change_at()
        assert at is not None
        reservation.advance(at)
        phases.append((at, reservation.holds))
    assert phases == [(10, True), (12, False), (13, True), (17, False), (18, True), (26, False)]


def test_a_phase_lasts_until_its_very_end() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 0.0)
    reservation.advance(FIRST_HOLD_S - 1e-9)
    assert reservation.holds
    reservation.advance(FIRST_HOLD_S)
    assert not reservation.holds


@pytest.mark.parametrize("later", [0.0, 0.5, 1.0, 3.7, 50.0, 1e6])
def test_after_a_look_at_the_clock_the_next_change_is_never_in_the_past(later: float) -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 0.0)
    reservation.advance(later)
    at = reservation.next_change_at()
    assert at is not None
    assert at > later


def test_the_next_ticket_begins_with_a_short_hold() -> None:
    reservation = PoolReservation()
    reservation.begin(ticket_of(2), 0.0)
    reservation.advance(100.0)
    reservation.end()
    reservation.begin(ticket_of(2), 200.0)
    assert reservation.holds
    assert reservation.next_change_at() == 202.0
    reservation.advance(203.0)
    assert reservation.next_change_at() == 207.0


def test_a_reservation_shows_what_it_does() -> None:
    reservation = PoolReservation()
    assert repr(reservation) == "<PoolReservation of no ticket>"
    reservation.begin(ticket_of(2), 0.0)
    assert repr(reservation) == "<PoolReservation holds for <Ticket #1 t/m x2 queued>>"
    reservation.advance(FIRST_HOLD_S)
    assert "yields" in repr(reservation)


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
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    simulation.submit(seconds=60.0)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.run(FIRST_HOLD_S - 0.1)
    assert (narrow.granted, wide.granted) == (False, False)
    simulation.run(0.1)
    assert (narrow.granted, wide.granted) == (True, False)


def test_while_the_pool_yields_slots_that_come_free_are_granted_too() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit(seconds=60.0)
    simulation.submit(width=2)
    narrow = [simulation.submit(seconds=0.4) for _ in range(5)]
    simulation.run(FIRST_HOLD_S + YIELD_S - 0.1)
    assert [request.granted for request in narrow] == [True, True, True, False, False]


@pytest.mark.parametrize("longest", [0.5, 3.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize("width", [2, 4])
def test_a_wide_ticket_gets_there_within_four_of_the_longest_requests(width: int, longest: float) -> None:
    """Under a load of narrow ones that never lets the slots be empty by chance."""
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
    served = Counter(simulation.order())
    assert served["narrow"] == pytest.approx(4 * served["wide"], rel=0.03)
    assert served["narrow"] + 4 * served["wide"] > 0.9 * 4 * 200


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
        assert idle_since is None or simulation.now - idle_since <= 17.0 + YIELD_S


def test_a_withdrawn_wide_ticket_gives_up_what_was_held_for_it() -> None:
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit(seconds=60.0)
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    simulation.withdraw(wide)
    assert narrow.granted
    assert simulation.scheduler.next_tick_at() is None or simulation.scheduler.depth == 0


def test_a_pool_stays_reserved_for_the_ticket_that_has_it_whoever_comes() -> None:
    """Else every newcomer would begin with a short hold, and the long ones would never be reached."""
    simulation = Simulation(SlotPool("gpu", 2))
    running = simulation.submit("old", seconds=60.0)
    first = simulation.submit("old", width=2)
    simulation.run(FIRST_HOLD_S + YIELD_S / 2)
    second = simulation.submit("new", width=2)
    simulation.release(running)
    assert (first.granted, second.granted) == (True, False)


def test_one_ticket_holds_one_pool_only() -> None:
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
    wide = simulation.submit(width=2)
    narrow = simulation.submit()
    for request in running:
        if request.lease.pool_name == "second":
            simulation.release(request)
    assert (narrow.granted, wide.granted) == (True, False)
    simulation.release(narrow)
    assert wide.lease.pool_name == "second"
    simulation.release(running[0])
    assert simulation.submit().lease.pool_name == "first"


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


def test_as_long_as_another_pool_may_yet_be_wide_enough_nobody_is_refused() -> None:
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
