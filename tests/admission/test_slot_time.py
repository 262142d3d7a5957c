"""Charges: a guess becomes fact while slots are held, and the fact alone stays."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, Outcome, SlotPool
from slotgate.admission.fair_order import Account, FairOrder
from slotgate.admission.guesses import UNKNOWN_S, Guesses
from slotgate.admission.slot_time import Charge, Clock
from tests.admission.simulation import Simulation


def charged(clock: Clock, *, slots: int = 1, guess: float = 10.0, weight: float = 1.0) -> Charge:
    return Charge(Account("t", FairOrder({})), [(clock, weight)], slots, guess, 0.0)


def test_a_charge_begins_as_a_guess() -> None:
    clock = Clock()
    charged(clock, slots=2, guess=10.0, weight=4.0)
    assert (clock.settled, clock.pending) == (0, 2.5)


@pytest.mark.parametrize("now", [1.0, 4.0, 5.0, 7.0, 100.0])
def test_the_sum_is_the_larger_of_the_guess_and_the_time_held(now: float) -> None:
    clock = Clock()
    charge = charged(clock, slots=2, guess=10.0)
    for moment in (0.3 * now, 0.3 * now, now):
        charge.update(moment)
    assert clock.settled == charge.held == pytest.approx(2 * now)
    assert clock.value == pytest.approx(max(10.0, 2 * now))


@pytest.mark.parametrize("now", [1.0, 100.0])
def test_at_the_end_the_guess_is_gone_and_the_fact_stays(now: float) -> None:
    clock = Clock()
    charge, other = charged(clock), charged(clock, guess=7.0)
    charge.close(now)
    charge.close(now + 5.0)
    assert (clock.settled, clock.pending, clock.open) == (now, 7.0, 1)
    other.cancel()
    assert (clock.settled, clock.pending, clock.open) == (now, 0, 0)


def test_every_slot_counts_until_it_is_idle() -> None:
    clock = Clock()
    charge = charged(clock, slots=3)
    charge.give_back(2, 1.0)
    assert charge.slots == 1
    charge.give_back(1, 5.0)
    assert clock.settled == 3 * 1.0 + 4.0


def test_a_lease_that_was_not_used_leaves_nothing() -> None:
    clock = Clock()
    charge, other = charged(clock), charged(clock, guess=0.0)
    charge.update(3.0)
    charge.cancel()
    assert (clock.settled, clock.pending, charge.held) == (0, 0, 0)
    assert other.slots == 1


def test_a_charge_that_moves_takes_only_its_guess_along() -> None:
    before, after = Clock(), Clock()
    charge = charged(before)
    charge.update(4.0)
    charge.move(Account("t", FairOrder({})), [(after, 2.0)])
    assert (before.value, before.open, after.value) == (4.0, 0, 3.0)
    charge.close(6.0)
    assert after.value == 1.0


def test_rounding_errors_of_guesses_end_with_the_last_charge() -> None:
    clock = Clock()
    charges = [charged(clock, guess=0.1 * number, weight=3.0) for number in range(1, 50)]
    for number, charge in enumerate(charges):
        charge.close(0.01 * number)
    assert clock.pending == 0


def test_an_unknown_kind_of_request_is_guessed_from_the_model_and_then_from_the_tenant() -> None:
    guesses = Guesses()
    chat, embedding = Demand("t", "m", endpoint="chat"), Demand("t", "m", endpoint="embeddings")
    assert guesses.of(chat) == UNKNOWN_S
    guesses.learn(embedding, 0.1)
    assert guesses.of(chat) == pytest.approx(0.1)
    for seconds in (4.0, 6.0):
        guesses.learn(chat, seconds)
    assert guesses.of(chat) == pytest.approx(5.0)
    assert guesses.of(embedding) == pytest.approx(0.1)
    for _ in range(100):
        guesses.learn(chat, 1.0)
    assert guesses.of(chat) == pytest.approx(1.0, abs=0.1)
    for number in range(10_000):
        guesses.learn(Demand(f"t{number}", "m"), 1.0)
    assert len(guesses._means) <= 8192


@pytest.mark.parametrize("ended", [False, True])
def test_a_charge_that_is_forgiven_leaves_nothing(*, ended: bool) -> None:
    pool = SlotPool("gpu", 2)
    simulation = Simulation(pool)
    request = simulation.submit()
    clock = simulation.scheduler._pool_queues[pool].order.account("t").clocks[0]
    simulation.now += 5.0
    simulation.release(request, Outcome.FINISHED if ended else Outcome.ABANDONED)
    request.lease.forgive()
    assert (clock.settled, clock.pending, clock.open) == (0, 0, 0)
    assert simulation.scheduler.slot_seconds["t"] == 0
