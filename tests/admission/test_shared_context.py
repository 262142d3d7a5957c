"""Pools whose slots share one context: running requests always fit, and no ticket waits for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slotgate.admission import Demand, Outcome, SlotPool, Ticket
from slotgate.admission.pool_reservation import FIRST_HOLD_S
from tests.admission.simulation import Simulation, ignore

CONTEXT = 1000


def pool_of(total: int, context: int = CONTEXT) -> tuple[Simulation, SlotPool]:
    pool = SlotPool("gpu", total)
    pool.context = context
    simulation = Simulation()
    simulation.scheduler.route({"m": [pool]})
    return simulation, pool


def submit(simulation: Simulation, tokens: int, **members: Any) -> Ticket:  # noqa: ANN401
    demand = Demand("t", "m", tokens=tokens, **members)
    return simulation.scheduler.submit(demand, ignore)


def end(ticket: Ticket, outcome: Outcome = Outcome.FINISHED) -> None:
    assert ticket.lease is not None
    ticket.lease.release(outcome)


def test_a_request_that_does_not_fit_the_context_waits_although_a_slot_is_free() -> None:
    simulation, pool = pool_of(4)
    first, second = submit(simulation, 600), submit(simulation, 600)
    assert (first.queued, second.queued, pool.free, pool.room) == (False, True, 3, 400)
    end(first)
    assert not second.queued


def test_without_a_shared_context_tokens_do_not_matter() -> None:
    simulation, _ = pool_of(2, context=0)
    assert [submit(simulation, 10**9).queued for _ in range(2)] == [False, False]


def test_a_request_larger_than_the_context_runs_alone() -> None:
    simulation, pool = pool_of(2)
    huge = submit(simulation, 5 * CONTEXT)
    small = submit(simulation, 1)
    assert (huge.queued, small.queued, pool.room) == (False, True, 0)
    end(huge)
    assert not small.queued


def test_an_answer_without_a_limit_counts_with_a_slot_s_share() -> None:
    simulation, _ = pool_of(4)
    assert [submit(simulation, 10, open_ended=True).queued for _ in range(4)] == [False] * 4
    simulation, _ = pool_of(4)
    submit(simulation, 10)
    assert [submit(simulation, 10, open_ended=True).queued for _ in range(4)] == [False] * 3 + [True]


def test_an_answer_without_a_limit_is_limited_to_the_tokens_that_are_counted_for_it() -> None:
    """The limit is at least half a slot's share, however long the prompt.

    A request with the whole context has none.
    """

    def limit(tokens: int, **members: object) -> tuple[int, int | None]:
        simulation, _ = pool_of(4)
        lease = submit(simulation, tokens, **members).lease
        assert lease is not None
        return lease.tokens, lease.answer_limit

    assert limit(10, open_ended=True) == (250, 240)
    assert limit(600, open_ended=True) == (725, 125)
    assert limit(10, open_ended=True, width=2) == (500, 245)
    assert limit(900, open_ended=True) == (CONTEXT, None)
    assert limit(600) == (600, None)


def test_without_a_shared_context_no_answer_gets_a_limit() -> None:
    simulation, _ = pool_of(2, context=0)
    lease = submit(simulation, 10, open_ended=True).lease
    assert lease is not None
    assert (lease.tokens, lease.answer_limit) == (0, None)


def test_an_abandoned_request_holds_its_tokens_until_it_is_known_to_be_over() -> None:
    simulation, pool = pool_of(2)
    end(submit(simulation, 600), Outcome.ABANDONED)
    waiting = submit(simulation, 600)
    assert (waiting.queued, pool.room) == (True, 400)
    pool.restarted()
    simulation.scheduler.dispatch()
    assert not waiting.queued


def test_each_slot_of_an_abandoned_wide_request_holds_a_part_of_its_tokens() -> None:
    simulation, pool = pool_of(2)
    end(submit(simulation, 600, width=2), Outcome.ABANDONED)
    assert pool.room == 400


def test_while_a_big_request_waits_small_ones_pass_now_and_then() -> None:
    """Small requests of its own tenant pass too, because they are of another size."""
    simulation, _ = pool_of(4)
    submit(simulation, 600)
    big, small = submit(simulation, 900), submit(simulation, 100)
    assert (big.queued, small.queued) == (True, True)
    simulation.run(2 * FIRST_HOLD_S)
    assert (big.queued, small.queued) == (True, False)


def test_a_big_one_gets_there_although_small_ones_never_cease() -> None:
    simulation, pool = pool_of(4)
    running = [submit(simulation, 200) for _ in range(4)]
    big = submit(simulation, 900)
    served = 0
    while big.queued:
        running += [submit(simulation, 200) for _ in range(4)]
        simulation.now += 0.5
        simulation.scheduler.tick()
        live = [ticket for ticket in running if ticket.lease is not None and ticket.lease.live]
        if live:
            end(live[0])
            served += 1
        assert simulation.now < 60
    assert served > 2, "small ones went on meanwhile"
    assert pool.room == 100


AGENT: dict[str, Any] = {"tokens": 700, "likely_tokens": 150}
"""A prompt of 100 tokens, `max_tokens` 600, and answers that took 50 until now."""


def grow(ticket: Ticket, tokens: int) -> None:
    assert ticket.lease is not None
    ticket.lease.grown(tokens)


def test_requests_are_granted_by_their_likely_need_with_room_for_the_worst() -> None:
    simulation, pool = pool_of(8)
    tickets = [submit(simulation, **AGENT) for _ in range(6)]
    assert [ticket.queued for ticket in tickets] == [False] * 5 + [True]
    assert pool.room == 250, "a quarter is kept for an answer that grows longer"
    end(tickets[0])
    assert not tickets[5].queued


def test_a_request_that_outgrows_its_likely_need_is_expected_to_need_most() -> None:
    simulation, pool = pool_of(8)
    first, second = submit(simulation, **AGENT), submit(simulation, **AGENT)
    grow(first, 150)
    assert pool.room == 700
    grow(first, 151)
    assert pool.room == 1000 - 700 - 150
    assert submit(simulation, **AGENT).queued
    end(first)
    assert pool.room == 1000 - 2 * 150
    assert second.lease is not None
    assert second.lease.live


def test_a_request_alone_may_take_the_whole_context() -> None:
    simulation, pool = pool_of(2)
    alone = submit(simulation, 5 * CONTEXT, likely_tokens=900)
    assert (alone.queued, pool.room) == (False, 100)


def test_an_unlimited_answer_that_needs_the_whole_context_still_runs_alone() -> None:
    simulation, pool = pool_of(4)
    submit(simulation, 900, likely_tokens=910, open_ended=True)
    assert (pool.room, submit(simulation, 1).queued) == (0, True)


def test_the_request_that_outgrew_its_likely_need_most_has_to_end_when_the_context_is_nearly_full() -> None:
    simulation, pool = pool_of(8)
    first, second = submit(simulation, **AGENT), submit(simulation, **AGENT)
    grow(first, 400)
    grow(second, 569)
    assert pool.overgrown() is None
    grow(first, 402)
    assert pool.overgrown() is second.lease
    end(first)
    assert pool.overgrown() is None, "alone it may take all"


def test_the_growth_until_the_next_look_counts() -> None:
    simulation, pool = pool_of(8)
    first, second = submit(simulation, **AGENT), submit(simulation, **AGENT)
    for ticket in (first, second):
        grow(ticket, 300)
    assert pool.overgrown() is None, "the first look shows no growth"
    for ticket in (first, second):
        grow(ticket, 400)
    assert pool.overgrown() is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1500), st.integers(0, 2)), max_size=80))
def test_running_requests_always_fit_and_all_are_served_in_the_end(
    steps: list[tuple[bool, int, int]],
) -> None:
    simulation, pool = pool_of(3)
    tickets: list[Ticket] = []
    for comes, number, kind in steps:
        live = [ticket for ticket in tickets if ticket.lease is not None and ticket.lease.live]
        if comes or not live:
            tickets.append(submit(simulation, number, open_ended=kind == 2, width=1 + kind % 2))
        else:
            end(live[number % len(live)])
        simulation.now += 0.3
        simulation.scheduler.tick()
        assert pool.room >= 0
        assert pool.leased <= pool.total
    for _ in range(len(tickets) * 8):
        simulation.now += 5.0
        simulation.scheduler.tick()
        for ticket in tickets:
            if ticket.lease is not None and ticket.lease.live:
                end(ticket)
    assert all(ticket.lease is not None for ticket in tickets)
