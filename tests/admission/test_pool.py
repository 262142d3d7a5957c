"""The counts of a pool: a slot is free if no lease holds it and it is not in doubt."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, Lease, Outcome, PoolStatus, SlotPool


class Granting:
    """Takes leases of one pool directly, as the scheduler does."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.now = 0.0

    def take(self, width: int = 1) -> Lease:
        lease = Lease(
            Demand("team", "model", width),
            pool_name=self.pool.name,
            clock=lambda: self.now,
            on_release=lambda lease: self.pool.give_back(lease, self.now),
        )
        self.pool.take(lease)
        return lease


def test_leased_slots_are_not_free() -> None:
    pool = SlotPool("gpu", 4)
    granting = Granting(pool)
    narrow, wide = granting.take(), granting.take(width=2)
    assert (pool.free, pool.leased) == (1, 3)
    wide.release(Outcome.FINISHED)
    assert (pool.free, pool.leased) == (3, 1)
    narrow.release(Outcome.FINISHED)
    assert (pool.free, pool.leased, len(pool.leases)) == (4, 0, 0)


@pytest.mark.parametrize("outcome", Outcome)
def test_a_slot_is_free_at_once_unless_its_work_was_abandoned(outcome: Outcome) -> None:
    pool = SlotPool("gpu", 4)
    Granting(pool).take(width=2).release(outcome)
    assert pool.free == (2 if outcome is Outcome.ABANDONED else 4)
    assert len(pool.quarantine) == (2 if outcome is Outcome.ABANDONED else 0)
    assert pool.released[outcome] == 1


def test_observers_are_called_only_when_a_slot_is_in_doubt() -> None:
    pool = SlotPool("gpu", 1)
    calls: list[int] = []
    pool.on_quarantine.append(lambda: calls.append(len(pool.quarantine)))
    granting = Granting(pool)
    granting.take().release(Outcome.FINISHED)
    assert calls == []
    granting.take().release(Outcome.ABANDONED)
    assert calls == [1]


def test_shrinking_evicts_no_lease_and_leaves_no_debt() -> None:
    pool = SlotPool("gpu", 4)
    granting = Granting(pool)
    leases = [granting.take() for _ in range(4)]
    pool.total = 2
    assert (pool.free, pool.leased) == (0, 4)
    for lease in leases[:2]:
        lease.release(Outcome.FINISHED)
    assert pool.free == 0
    leases[2].release(Outcome.FINISHED)
    assert pool.free == 1


def test_a_pool_that_does_not_admit_keeps_its_leases() -> None:
    pool = SlotPool("gpu", 2, admitting=False)
    granting = Granting(pool)
    lease = granting.take()
    assert (pool.free, pool.leased) == (1, 1)
    lease.release(Outcome.FINISHED)
    pool.admitting = True
    assert pool.free == 2


def test_the_service_time_is_that_of_finished_requests_and_follows_them_slowly() -> None:
    pool = SlotPool("gpu", 1)
    granting = Granting(pool)
    for seconds, outcome in [(10.0, Outcome.FINISHED), (0.1, Outcome.REFUSED), (20.0, Outcome.FINISHED)]:
        lease = granting.take()
        granting.now += seconds
        lease.release(outcome)
    assert pool.service_s == pytest.approx(12.0)


def test_idleness_counts_from_the_end_of_the_last_lease() -> None:
    pool = SlotPool("gpu", 2)
    calls: list[float] = []
    granting = Granting(pool)
    pool.on_idle.append(lambda: calls.append(granting.now))
    first, second = granting.take(), granting.take()
    granting.now = 5.0
    first.release(Outcome.FINISHED)
    assert (calls, pool.status(6.0).idle_s) == ([], 0.0)
    granting.now = 7.0
    second.release(Outcome.ABANDONED)
    assert (calls, pool.idle_since, pool.status(9.0).idle_s) == ([7.0], 7.0, 2.0)


def test_foreign_work_lowers_the_free_slots_while_it_lasts() -> None:
    pool = SlotPool("gpu", 4, shared=True)
    Granting(pool).take()
    pool.probe_answered(pool.probe_sent(1.0), frozenset("abc"), 1.0)
    assert (pool.foreign, pool.free) == (2, 1)
    pool.probe_answered(pool.probe_sent(3.0), frozenset("a"), 3.0)
    assert (pool.foreign, pool.free) == (0, 3)


def test_a_lease_granted_while_a_probe_is_under_way_is_not_taken_for_foreign_work() -> None:
    pool = SlotPool("gpu", 4)
    granting = Granting(pool)
    ended = granting.take()
    probe = pool.probe_sent(1.0)
    ended.release(Outcome.FINISHED)
    granting.take().release(Outcome.FINISHED)
    granting.take()
    pool.probe_answered(probe, frozenset("abc"), 1.0)
    assert pool.foreign == 0
    pool.probe_answered(pool.probe_sent(2.0), frozenset("abc"), 2.0)
    assert pool.foreign == 2


def test_a_quarantined_slot_is_not_taken_for_foreign_work() -> None:
    pool = SlotPool("gpu", 4)
    Granting(pool).take(width=2).release(Outcome.ABANDONED)
    pool.probe_answered(pool.probe_sent(2.0), frozenset("ab"), 2.0)
    assert (pool.foreign, len(pool.quarantine), pool.free) == (0, 2, 2)
    pool.probe_answered(pool.probe_sent(4.0), frozenset("abc"), 4.0)
    assert (pool.foreign, len(pool.quarantine), pool.free) == (1, 2, 1)


def test_an_answer_that_cannot_be_read_changes_no_count() -> None:
    pool = SlotPool("gpu", 4, shared=True)
    Granting(pool).take().release(Outcome.ABANDONED)
    pool.probe_answered(pool.probe_sent(2.0), frozenset("abc"), 2.0)
    before = pool.status(2.0)
    pool.probe_answered(pool.probe_sent(4.0), None, 4.0)
    assert pool.status(2.0) == before


def test_a_restart_of_the_backend_frees_slots_in_doubt() -> None:
    pool = SlotPool("gpu", 4)
    granting = Granting(pool)
    granting.take(width=2).release(Outcome.ABANDONED)
    pool.probe_answered(pool.probe_sent(2.0), frozenset("abc"), 2.0)
    live = granting.take()
    pool.restarted()
    assert (pool.free, pool.foreign, live.live) == (3, 0, True)


def test_the_status_accounts_for_every_slot() -> None:
    pool = SlotPool("gpu", 5)
    granting = Granting(pool)
    granting.take()
    granting.now = 1.0
    granting.take().release(Outcome.ABANDONED)
    pool.probe_answered(pool.probe_sent(2.0), frozenset("abc"), 2.0)
    assert pool.status(4.0) == PoolStatus(
        total=5, idle=2, leased=1, quarantined=1, foreign=1, quarantined_oldest_s=3.0, idle_s=0.0
    )
    assert repr(pool) == "<SlotPool gpu 1/5 leased, 1 quarantined>"
