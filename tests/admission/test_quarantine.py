"""The quarantine rule, case by case: when to ask, and what an answer shows for certain."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, Lease, Outcome, SlotPool
from slotgate.admission.quarantine import CERTAIN_S, EARLY_S, SHARED_S, SPACING_S, UNSTARTED_S

MIB = 1024 * 1024


class ProbedPool:
    """A pool, its leases, and answers to probes: the names of the tasks that run."""

    def __init__(self, slots: int = 4, *, shared: bool = False) -> None:
        self.now = 100.0
        self.pool = SlotPool("gpu", slots, shared=shared)

    def lease(self, *, started: bool = True, delivered: bool = False, width: int = 1, mib: int = 0) -> Lease:
        lease = Lease(
            Demand("team", "model", width, body_bytes=mib * MIB),
            pool_name="gpu",
            clock=lambda: self.now,
            on_release=lambda lease: self.pool.give_back(lease, self.now),
        )
        self.pool.take(lease)
        if started:
            lease.start()
        lease.delivered = delivered
        return lease

    def abandon(self, *, started: bool = True, delivered: bool = False, width: int = 1, mib: int = 0) -> None:
        lease = self.lease(started=started, delivered=delivered, width=width, mib=mib)
        lease.release(Outcome.ABANDONED)

    def ask(self, running: str | None, *, after_s: float = 0.0) -> int:
        """Probe and answer at once.

        Each letter is a running task. Return the number of slots that came back.
        """
        self.now += after_s
        probe = self.pool.probe_sent(self.now)
        return self.pool.probe_answered(probe, _tasks(running), self.now)

    @property
    def asks_in_s(self) -> float | None:
        """The seconds until the next probe may leave."""
        at = self.pool.next_probe_at()
        return None if at is None else round(at - self.now, 6)

    @property
    def quarantined(self) -> int:
        return len(self.pool.quarantine)


def _tasks(running: str | None) -> frozenset[str] | None:
    return None if running is None else frozenset(running)


# -- when to ask


def test_no_probe_is_sent_while_no_slot_is_in_doubt() -> None:
    backend = ProbedPool()
    backend.lease().release(Outcome.FINISHED)
    backend.lease()
    assert backend.asks_in_s is None


def test_the_first_question_waits_until_the_server_has_looked() -> None:
    backend = ProbedPool()
    backend.abandon()
    assert backend.asks_in_s == SPACING_S


def test_a_stream_that_had_delivered_is_probed_early() -> None:
    backend = ProbedPool()
    backend.abandon(delivered=True)
    assert backend.asks_in_s == EARLY_S


def test_a_slot_that_the_early_probe_found_busy_is_probed_after_the_spacing() -> None:
    backend = ProbedPool()
    backend.abandon(delivered=True)
    backend.ask("a", after_s=EARLY_S)
    assert backend.asks_in_s == SPACING_S


@pytest.mark.parametrize("mib", [0, 8, 20])
def test_a_request_closed_before_its_headers_is_probed_when_it_can_be_seen(mib: int) -> None:
    backend = ProbedPool()
    backend.abandon(started=False, mib=mib)
    assert backend.asks_in_s == max(SPACING_S, UNSTARTED_S + 0.1 * mib)


def test_an_early_probe_keeps_its_distance_to_the_last_while_a_prefill_may_not_be_noticed() -> None:
    backend = ProbedPool()
    backend.abandon()
    backend.ask("a", after_s=SPACING_S)
    backend.now += 0.2
    backend.abandon(delivered=True)
    assert backend.asks_in_s == SPACING_S - 0.2


def test_an_early_question_keeps_no_distance_when_nothing_else_is_in_doubt() -> None:
    backend = ProbedPool()
    for _ in range(5):
        backend.abandon(delivered=True)
        assert backend.asks_in_s == EARLY_S
        assert backend.ask("", after_s=EARLY_S) == 1


def test_the_spacing_counts_from_the_answer_because_the_answer_disturbs() -> None:
    backend = ProbedPool()
    backend.abandon()
    backend.now += SPACING_S
    probe = backend.pool.probe_sent(backend.now)
    backend.now += 1.2
    backend.pool.probe_answered(probe, _tasks("a"), backend.now)
    assert backend.asks_in_s == SPACING_S


def test_an_unreadable_answer_does_not_make_the_next_probe_sooner() -> None:
    backend = ProbedPool()
    backend.abandon()
    backend.ask(None, after_s=SPACING_S)
    assert backend.asks_in_s == SPACING_S
    assert backend.ask("", after_s=SPACING_S) == 1


def test_a_probe_serves_all_slots_in_doubt() -> None:
    backend = ProbedPool()
    for _ in range(3):
        backend.abandon()
        backend.now += 0.1
    assert backend.ask("", after_s=SPACING_S) == 3
    assert backend.asks_in_s is None


def test_a_shared_backend_is_probed_at_once_and_then_regularly() -> None:
    backend = ProbedPool(shared=True)
    at = backend.pool.next_probe_at()
    assert at is not None
    assert at <= backend.now
    backend.ask("")
    assert backend.asks_in_s == SHARED_S


def test_a_backend_with_foreign_work_is_probed_until_the_work_is_gone() -> None:
    backend = ProbedPool()
    backend.ask("ab")
    assert backend.asks_in_s == SHARED_S
    backend.ask("", after_s=SHARED_S)
    assert backend.asks_in_s is None


# -- what an answer shows


def test_the_fourth_slot_is_in_doubt_while_four_are_busy_and_three_live() -> None:
    backend = ProbedPool(4)
    for _ in range(3):
        backend.lease()
    backend.abandon()
    assert backend.ask("abcd", after_s=SPACING_S) == 0
    assert backend.pool.free == 0
    assert backend.ask("abc", after_s=SPACING_S) == 1
    assert backend.pool.free == 1


def test_a_lease_that_is_granted_but_not_started_accounts_for_no_busy_slot() -> None:
    backend = ProbedPool(2)
    live = backend.lease(started=False)
    backend.abandon()
    assert backend.ask("a", after_s=SPACING_S) == 0
    live.start()
    assert backend.ask("a", after_s=SPACING_S) == 1


def test_a_lease_that_has_been_granted_for_long_has_its_slot_though_it_says_nothing() -> None:
    backend = ProbedPool(2)
    backend.lease(started=False)
    backend.abandon()
    assert backend.ask("a", after_s=CERTAIN_S - 0.1) == 0
    assert backend.ask("a", after_s=SPACING_S) == 1


def test_a_lease_that_ends_while_the_question_is_under_way_accounts_for_no_busy_slot() -> None:
    """The one busy slot is that of the abandoned request, because the live one had just ended."""
    backend = ProbedPool(2)
    live = backend.lease()
    backend.abandon()
    probe = backend.pool.probe_sent(backend.now + SPACING_S)
    live.release(Outcome.FINISHED)
    assert backend.pool.probe_answered(probe, _tasks("a"), backend.now + SPACING_S) == 0


def test_a_lease_that_starts_while_the_question_is_under_way_accounts_for_no_busy_slot() -> None:
    """The lease may have started after the slots were looked at, so the busy slot may be the abandoned
    request's.
    """
    backend = ProbedPool(2)
    late = backend.lease(started=False)
    backend.abandon()
    probe = backend.pool.probe_sent(backend.now + SPACING_S)
    late.start()
    assert backend.pool.probe_answered(probe, _tasks("a"), backend.now + SPACING_S) == 0


def test_a_slot_closed_while_the_question_is_under_way_is_not_judged_by_its_answer() -> None:
    backend = ProbedPool(2)
    live = backend.lease()
    probe = backend.pool.probe_sent(backend.now)
    backend.now += 0.01
    live.release(Outcome.ABANDONED)
    assert backend.pool.probe_answered(probe, _tasks(""), backend.now) == 0
    assert backend.quarantined == 1


@pytest.mark.parametrize(("mib", "visible_after_s"), [(0, 0.5), (10, 1.5), (20, 2.5)])
def test_a_request_closed_before_its_headers_is_judged_when_it_can_be_seen(
    mib: int, visible_after_s: float
) -> None:
    backend = ProbedPool(2)
    backend.abandon(started=False, mib=mib)
    assert backend.ask("", after_s=visible_after_s - 0.01) == 0
    assert backend.ask("", after_s=0.01) == 1


def test_earlier_results_do_not_return_a_slot_that_they_could_not_show() -> None:
    """The first answer shows another task only.

    The lease that started late runs the task of the second answer.
    """
    backend = ProbedPool(2)
    backend.abandon(started=False)
    assert backend.ask("a", after_s=0.4) == 0
    assert backend.ask("b", after_s=SPACING_S) == 0
    assert backend.ask("", after_s=SPACING_S) == 1


def test_an_answer_that_cannot_be_read_changes_nothing() -> None:
    backend = ProbedPool(2)
    backend.abandon()
    assert backend.ask(None, after_s=SPACING_S) == 0
    assert backend.quarantined == 1


def test_the_oldest_slots_return_first() -> None:
    backend = ProbedPool(4)
    for _ in range(3):
        backend.abandon()
        backend.now += 1.0
    assert backend.ask("a", after_s=SPACING_S) == 2
    assert backend.pool.quarantine.oldest_age_s(backend.now) == pytest.approx(1.0 + SPACING_S)


def test_the_slots_of_a_wide_request_return_one_by_one() -> None:
    backend = ProbedPool(4)
    backend.abandon(width=3)
    assert backend.ask("abc", after_s=SPACING_S) == 0
    assert backend.ask("ab", after_s=SPACING_S) == 1
    assert backend.ask("", after_s=SPACING_S) == 2


def test_a_wide_lease_accounts_for_the_one_slot_that_it_surely_uses() -> None:
    backend = ProbedPool(4)
    backend.lease(width=2)
    backend.abandon()
    assert backend.ask("ab", after_s=SPACING_S) == 0
    assert backend.ask("a", after_s=SPACING_S) == 1


def test_a_slot_that_stays_busy_stays_out_and_shows_its_age() -> None:
    backend = ProbedPool(2)
    backend.abandon()
    for _ in range(100):
        assert backend.ask("a", after_s=SPACING_S) == 0
    assert backend.pool.status(backend.now).quarantined_oldest_s == pytest.approx(100 * SPACING_S)


def test_the_number_of_kept_probe_results_is_bounded() -> None:
    backend = ProbedPool(3)
    backend.abandon()
    for number in range(1000):
        running = {"stuck", number}
        probe = backend.pool.probe_sent(backend.now)
        backend.pool.probe_answered(probe, frozenset(running), backend.now)
        backend.now += SPACING_S
    results = int(repr(backend.pool.quarantine).split()[-2])
    assert results <= 32
    assert backend.ask("", after_s=SPACING_S) == 1
    assert repr(backend.pool.quarantine) == "<Quarantine 0 slots, 0 results>"


# -- several answers together


def test_tasks_that_came_later_cannot_be_the_abandoned_one() -> None:
    backend = ProbedPool(2)
    backend.lease(started=False)
    backend.abandon()
    assert backend.ask("a", after_s=SPACING_S) == 0
    assert backend.ask("b", after_s=SPACING_S) == 1


def test_a_task_that_runs_on_may_be_the_abandoned_one() -> None:
    backend = ProbedPool(3)
    for _ in range(2):
        backend.lease(started=False)
    backend.abandon()
    assert backend.ask("ab", after_s=SPACING_S) == 0
    assert backend.ask("bc", after_s=SPACING_S) == 0
    assert backend.ask("cd", after_s=SPACING_S) == 1


def test_a_task_seen_idle_between_two_answers_does_not_come_back_to_life() -> None:
    """Tasks have numbers of their own, so the same number cannot mean another task."""
    backend = ProbedPool(3)
    for _ in range(2):
        backend.lease(started=False)
    backend.abandon()
    assert backend.ask("ab", after_s=SPACING_S) == 0
    assert backend.ask("a", after_s=SPACING_S) == 0
    assert backend.ask("bc", after_s=SPACING_S) == 1


def test_started_leases_and_later_tasks_together_show_a_slot_idle() -> None:
    """A stream runs on, a slot always has new work that sends nothing, and another slot is in doubt."""
    backend = ProbedPool(3)
    backend.lease()
    backend.lease(started=False)
    backend.abandon()
    assert backend.ask("sa", after_s=SPACING_S) == 0
    assert backend.ask("sb", after_s=SPACING_S) == 1


def test_each_slot_is_judged_by_the_answers_that_could_show_it() -> None:
    backend = ProbedPool(4)
    backend.lease(started=False)
    backend.abandon()
    assert backend.ask("ab", after_s=SPACING_S) == 0
    backend.now += 0.1
    backend.abandon()
    assert backend.ask("bc", after_s=SPACING_S) == 0
    assert backend.ask("c", after_s=SPACING_S) == 1
    assert backend.quarantined == 1
    assert backend.ask("d", after_s=SPACING_S) == 1


def test_a_request_with_more_work_than_slots_puts_new_tasks_into_them() -> None:
    """Four hundred inputs share two slots, so later tasks still belong to the abandoned request."""
    backend = ProbedPool(2)
    backend.abandon(width=2)
    for running in ("ab", "cd", "ef"):
        assert backend.ask(running, after_s=SPACING_S) == 0
    assert backend.ask("f", after_s=SPACING_S) == 1
    backend.lease(started=False)
    assert backend.ask("fg", after_s=SPACING_S) == 0
    assert backend.ask("gh", after_s=SPACING_S) == 1


# -- foreign work


def test_foreign_work_keeps_a_slot_out_only_while_it_lasts() -> None:
    backend = ProbedPool(2, shared=True)
    backend.abandon()
    assert backend.ask("f", after_s=SPACING_S) == 0
    assert backend.pool.free == 1, "one for the slot in doubt, which may be the busy one"
    assert backend.ask("", after_s=SPACING_S) == 1
    assert backend.pool.free == 2


def test_foreign_work_on_every_slot_loses_none() -> None:
    backend = ProbedPool(3, shared=True)
    backend.abandon()
    backend.ask("xyz", after_s=SPACING_S)
    assert backend.pool.free == 0
    backend.ask("", after_s=SPACING_S)
    assert backend.pool.free == 3


# -- without /slots


def test_time_frees_slots_if_the_backend_does_not_serve_its_slots() -> None:
    backend = ProbedPool(4)
    backend.abandon()
    backend.now += 60.0
    backend.abandon()
    assert len(backend.pool.quarantine.expire(backend.now + 59.9, 120.0)) == 0
    assert len(backend.pool.quarantine.expire(backend.now + 60.0, 120.0)) == 1
    assert backend.quarantined == 1


def test_time_frees_a_slot_in_the_very_moment_that_is_waited_for() -> None:
    """The moment is a sum, and the age is a difference: the two need not round to the same side."""
    backend = ProbedPool(4)
    backend.now, max_s = 50.2, 120.0
    backend.abandon()
    moment = backend.now + max_s
    assert moment - backend.now < max_s
    assert len(backend.pool.quarantine.expire(moment, max_s)) == 1


def test_a_restart_frees_all_slots_and_forgets_all_results() -> None:
    backend = ProbedPool(4)
    backend.abandon(width=2)
    backend.ask("ab", after_s=SPACING_S)
    backend.pool.restarted()
    assert backend.quarantined == 0
    backend.abandon()
    assert backend.ask("a", after_s=SPACING_S) == 0
