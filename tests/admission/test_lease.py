"""A lease goes one way, and only the first release counts."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, Lease, LeaseState, Outcome


class LeaseObserver:
    """Notes what a lease reports."""

    def __init__(self) -> None:
        self.now = 10.0
        self.released: list[Lease] = []
        self.idle: list[int] = []

    def lease(self, width: int = 1) -> Lease:
        return Lease(
            Demand("team", "model", width),
            pool_name="gpu",
            clock=lambda: self.now,
            on_release=self.released.append,
            on_idle=self.idle.append,
        )


def test_a_lease_is_granted_live_and_not_started() -> None:
    lease = LeaseObserver().lease(width=2)
    assert lease.state is LeaseState.GRANTED
    assert lease.live
    assert (lease.granted_at, lease.started_at, lease.outcome) == (10.0, None, None)
    assert lease.width == 2


def test_a_start_is_noted_once() -> None:
    owner = LeaseObserver()
    lease = owner.lease()
    owner.now = 11.0
    lease.start()
    owner.now = 12.0
    lease.start()
    assert lease.state is LeaseState.STARTED
    assert lease.started_at == 11.0


def test_a_released_lease_cannot_start() -> None:
    lease = LeaseObserver().lease()
    lease.release(Outcome.UNUSED)
    lease.start()
    assert lease.state is LeaseState.RELEASED
    assert lease.started_at is None


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("later", Outcome)
def test_only_the_first_release_counts(started: bool, later: Outcome) -> None:
    owner = LeaseObserver()
    lease = owner.lease()
    if started:
        lease.start()
    lease.release(Outcome.FINISHED)
    lease.release(later)
    assert owner.released == [lease]
    assert lease.outcome is Outcome.FINISHED
    assert not lease.live


def test_the_outcome_stands_when_the_owner_hears_of_the_release() -> None:
    seen: list[Outcome | None] = []
    lease = Lease(
        Demand("team", "model"),
        pool_name="gpu",
        clock=lambda: 0.0,
        on_release=lambda lease: seen.append(lease.outcome),
    )
    lease.release(Outcome.REFUSED)
    assert seen == [Outcome.REFUSED]


def test_only_abandoned_work_leaves_slots_in_doubt() -> None:
    assert [outcome for outcome in Outcome if not outcome.verified] == [Outcome.ABANDONED]


def test_a_lease_passes_on_how_many_of_its_slots_left_the_quarantine() -> None:
    owner = LeaseObserver()
    lease = owner.lease(width=2)
    lease.release(Outcome.ABANDONED)
    assert owner.idle == []
    lease.slots_idle(1)
    lease.slots_idle(1)
    assert owner.idle == [1, 1]


def test_a_lease_shows_whose_it_is_and_how_it_ended() -> None:
    lease = LeaseObserver().lease(width=2)
    assert repr(lease) == "<Lease gpu x2 team granted>"
    lease.release(Outcome.ABANDONED)
    assert repr(lease) == "<Lease gpu x2 team released abandoned>"
