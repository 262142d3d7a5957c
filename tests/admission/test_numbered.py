"""Pools that number their slots: each lease knows its slots, and no request gets a slot that is not clean."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.admission import SETTLE_S, Demand, Outcome, SlotPool, SlotProbe, Ticket
from slotgate.admission.pool_reservation import FIRST_HOLD_S
from tests.admission.simulation import Simulation, ignore

ONE = Demand("other", "m")
ISOLATED = Demand("apart", "m", isolated=True)
MESSAGE = Demand("other", "m", numbered=False)


def pool_of(total: int) -> tuple[Simulation, SlotPool]:
    pool = SlotPool("gpu", total)
    pool.numbered = True
    simulation = Simulation()
    simulation.scheduler.route({"m": [pool]})
    return simulation, pool


def submit(simulation: Simulation, demand: Demand) -> Ticket:
    return simulation.scheduler.submit(demand, ignore)


def end(ticket: Ticket, outcome: Outcome = Outcome.FINISHED) -> None:
    assert ticket.lease is not None
    ticket.lease.release(outcome)


def slots(ticket: Ticket) -> tuple[int, ...]:
    return ticket.lease.slots if ticket.lease is not None else ()


def test_no_two_leases_hold_one_number() -> None:
    simulation, _ = pool_of(3)
    assert [slots(submit(simulation, ONE)) for _ in range(4)] == [(0,), (1,), (2,), ()]


def test_a_pool_without_numbers_gives_none() -> None:
    simulation, pool = pool_of(2)
    pool.numbered = False
    assert slots(submit(simulation, ONE)) == ()


def test_the_slot_that_was_used_longest_ago_is_next() -> None:
    simulation, _ = pool_of(2)
    first, second = submit(simulation, ONE), submit(simulation, ONE)
    end(second)
    end(first)
    assert slots(submit(simulation, ONE)) == (1,)


def test_a_slot_that_is_used_again_is_the_last_to_be_next() -> None:
    simulation, _ = pool_of(2)
    for ticket in [submit(simulation, ONE), submit(simulation, ONE)]:
        end(ticket)
    again = submit(simulation, ONE)
    end(again)
    assert (slots(again), slots(submit(simulation, ONE))) == ((0,), (1,))


def test_a_slot_that_was_cleaned_is_taken_before_one_that_holds_something() -> None:
    simulation, pool = pool_of(2)
    end(submit(simulation, ONE))
    end(submit(simulation, ISOLATED))
    pool.cleaned(1)
    assert slots(submit(simulation, ONE)) == (1,)


def test_the_slot_that_holds_the_prompt_is_taken_if_it_is_free() -> None:
    simulation, _ = pool_of(3)
    warm = Demand("other", "m", warm_slots={"gpu": 2})
    assert slots(submit(simulation, warm)) == (2,)
    assert slots(submit(simulation, warm)) == (0,)


@pytest.mark.parametrize("demand", [MESSAGE, Demand("other", "m", width=2)])
def test_a_request_that_cannot_name_its_slots_waits_for_the_whole_pool(demand: Demand) -> None:
    simulation, pool = pool_of(3)
    small, whole = submit(simulation, ONE), submit(simulation, demand)
    assert whole.queued
    end(small)
    assert slots(whole) == (0, 1, 2)
    assert pool.free == 0
    end(whole)
    assert pool.free == 3


def test_a_request_wider_than_the_pool_waits_for_a_wider_pool() -> None:
    """The request waits for another pool, which may have that many slots when it has loaded."""
    pool, loading = SlotPool("gpu", 2), SlotPool("loading", 0, admitting=False)
    pool.numbered = True
    simulation = Simulation()
    simulation.scheduler.route({"m": [pool, loading]})
    assert submit(simulation, Demand("other", "m", width=3)).queued


def test_while_a_request_waits_for_the_whole_pool_others_of_its_tenant_pass_now_and_then() -> None:
    simulation, _ = pool_of(2)
    submit(simulation, ONE)
    whole, one = submit(simulation, MESSAGE), submit(simulation, ONE)
    assert (whole.queued, one.queued) == (True, True)
    simulation.run(2 * FIRST_HOLD_S)
    assert (whole.queued, one.queued) == (True, False)


def test_a_lease_of_the_whole_pool_takes_the_whole_shared_context() -> None:
    simulation, pool = pool_of(2)
    pool.context = 1000
    whole = submit(simulation, Demand("other", "m", numbered=False, tokens=10, open_ended=True)).lease
    assert whole is not None
    assert (whole.tokens, whole.answer_limit) == (1000, None)


def test_a_request_for_the_whole_pool_is_served_while_others_go_on() -> None:
    """Other requests go on meanwhile: a slot frees every second, and there is always a request for it."""
    simulation, pool = pool_of(2)
    running = [submit(simulation, ONE) for _ in range(2)]
    waiting = [submit(simulation, ONE) for _ in range(40)]
    whole = submit(simulation, MESSAGE)
    served = 0
    while whole.queued:
        simulation.now += 0.5
        simulation.scheduler.tick()
        running = [ticket for ticket in [*running, *waiting] if ticket.lease and ticket.lease.live]
        if running:
            end(running[0])
            served += 1
        assert served < 45, "never served"
    assert slots(whole) == (0, 1)
    assert pool.free == 0


def test_a_slot_that_an_isolated_request_used_is_granted_only_when_clean() -> None:
    simulation, pool = pool_of(1)
    told: list[list[int]] = []
    pool.on_unclean.append(lambda: told.append(list(pool.unclean)))
    end(submit(simulation, ISOLATED))
    next_one = submit(simulation, ONE)
    assert (told, next_one.queued, pool.free, pool.status(simulation.now).quarantined) == ([[0]], True, 0, 1)
    pool.cleaned(0)
    simulation.scheduler.dispatch()
    assert slots(next_one) == (0,)


def test_an_unclean_slot_is_not_granted_even_to_the_request_that_it_would_suit_best() -> None:
    simulation, _ = pool_of(2)
    end(submit(simulation, ISOLATED))
    assert slots(submit(simulation, Demand("other", "m", warm_slots={"gpu": 0}))) == (1,)


def test_the_status_shows_for_how_long_a_slot_has_not_been_clean() -> None:
    simulation, pool = pool_of(2)
    end(submit(simulation, ISOLATED))
    simulation.now += 7.0
    assert pool.status(simulation.now).quarantined_oldest_s == 7.0


def test_a_request_that_never_reached_the_backend_leaves_its_slot_clean() -> None:
    simulation, pool = pool_of(1)
    end(submit(simulation, ISOLATED), Outcome.UNUSED)
    assert (pool.unclean, pool.free) == ({}, 1)


def test_an_abandoned_slot_is_cleaned_when_it_is_known_to_be_idle() -> None:
    simulation, pool = pool_of(2)
    end(submit(simulation, ISOLATED), Outcome.ABANDONED)
    assert (len(pool.quarantine), list(pool.unclean)) == (1, [])
    simulation.now += 2.0
    probe = pool.probe_sent(simulation.now)
    simulation.now += SETTLE_S
    assert pool.probe_answered(probe, frozenset(), simulation.now) == 1
    assert (len(pool.quarantine), list(pool.unclean), pool.free) == (0, [0], 1)


def test_an_expired_slot_of_an_isolated_request_is_cleaned() -> None:
    simulation, pool = pool_of(1)
    end(submit(simulation, ISOLATED), Outcome.ABANDONED)
    simulation.now += 120.0
    assert pool.expire(simulation.now, 120.0) == 1
    assert list(pool.unclean) == [0]


def test_the_abandoned_slot_that_was_seen_busy_stays_quarantined() -> None:
    simulation, pool = pool_of(2)
    older, newer = submit(simulation, ONE), submit(simulation, ONE)
    end(older, Outcome.ABANDONED)
    end(newer, Outcome.ABANDONED)
    simulation.now += 2.0
    probe: SlotProbe = pool.probe_sent(simulation.now)
    simulation.now += SETTLE_S
    pool.probe_answered(probe, frozenset({(0, "7")}), simulation.now, busy={0})
    assert [slot.number for slot in pool.quarantine.slots] == [0]
    assert slots(submit(simulation, ONE)) == (1,)


def test_a_restart_leaves_nothing_to_clean() -> None:
    simulation, pool = pool_of(1)
    end(submit(simulation, ISOLATED))
    pool.restarted()
    assert (pool.unclean, pool.free) == ({}, 1)


DEMANDS = [ONE, ISOLATED, MESSAGE, Demand("apart", "m", width=2, isolated=True)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "end", "clean", "probe"]), st.integers(0, 7)), max_size=60
)


@given(STEPS)
def test_whatever_happens_numbers_are_held_once_and_clean(steps: list[tuple[str, int]]) -> None:
    """`dirty` is the test's own set of slots that isolated requests used and that are not cleaned."""
    simulation, pool = pool_of(3)
    tickets: list[Ticket] = []
    dirty: set[int] = set()
    for word, number in steps:
        seen: dict[str, Any] = {"live": [ticket for ticket in tickets if ticket.lease and ticket.lease.live]}
        before = {id(ticket) for ticket in seen["live"]}
        if word == "submit":
            tickets.append(submit(simulation, DEMANDS[number % len(DEMANDS)]))
        elif word == "end" and seen["live"]:
            outcomes = [Outcome.FINISHED, Outcome.ABANDONED, Outcome.REFUSED]
            ended = seen["live"][number % len(seen["live"])]
            dirty |= set(slots(ended)) if ended.demand.isolated else set()
            end(ended, outcomes[number % 3])
        elif word == "clean" and pool.unclean:
            slot = list(pool.unclean)[number % len(pool.unclean)]
            dirty.discard(slot)
            pool.cleaned(slot)
            simulation.scheduler.dispatch()
        elif word == "probe":
            simulation.now += 20.0
            probe = pool.probe_sent(simulation.now)
            simulation.now += SETTLE_S
            pool.probe_answered(probe, frozenset(), simulation.now)
            simulation.scheduler.tick()
        live = [ticket for ticket in tickets if ticket.lease and ticket.lease.live]
        held = Counter(slot for ticket in live for slot in slots(ticket))
        assert all(count == 1 and 0 <= slot < 3 for slot, count in held.items()), held
        assert all(len(slots(ticket)) == (ticket.lease.width if ticket.lease else 0) for ticket in live)
        fresh = {slot for ticket in live if id(ticket) not in before for slot in slots(ticket)}
        assert not fresh & dirty, "granted before it was clean"
