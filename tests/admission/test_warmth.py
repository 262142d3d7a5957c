"""The warm pool serves a ticket that could go to several pools, if no other ticket loses a slot by it."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, QueueLimits, SlotPool
from tests.admission.simulation import SimulatedRequest, Simulation

WAIT_S = 0.05
LIMITS = QueueLimits(
    max_queue=100,
    max_queue_per_tenant=100,
    queue_timeout_s=100,
    affinity_max_wait_s=WAIT_S,
)
MUCH = 10_000


class Two(Simulation):
    """Two pools of one slot each."""

    def __init__(self, slots: int = 1) -> None:
        self.a, self.b = SlotPool("a", slots), SlotPool("b", slots)
        super().__init__(self.a, self.b, limits=LIMITS)

    def warm(self, seconds: float = 1.0, tenant: str = "t", **warmth: int) -> SimulatedRequest:
        return self.submit(tenant, seconds=seconds, warmth=warmth)


def served_at(request: SimulatedRequest) -> str:
    return request.lease.pool_name


def test_a_ticket_goes_to_the_pool_that_knows_most_of_it() -> None:
    two = Two(slots=3)
    assert served_at(two.warm(b=MUCH)) == "b"
    assert served_at(two.warm(b=MUCH)) == "b", "although less is going on at the other"
    assert served_at(two.warm(a=MUCH, b=MUCH + 1)) == "b"
    late = two.warm(seconds=5, b=MUCH)
    two.run(WAIT_S * 1.1)
    assert served_at(late) == "a", "the warm one is full"


def test_the_freest_of_equally_warm_pools_is_chosen() -> None:
    two = Two(slots=2)
    assert [served_at(two.warm(a=MUCH, b=MUCH)) for _ in range(4)] in (
        ["a", "b", "a", "b"],
        ["b", "a", "b", "a"],
    )


def test_a_ticket_waits_for_its_warm_pool_for_a_moment_and_no_longer() -> None:
    two = Two()
    busy = two.warm(seconds=10, a=MUCH)
    ticket = two.warm(a=MUCH)
    assert not ticket.granted
    two.run(WAIT_S * 0.9)
    assert not ticket.granted
    two.run(WAIT_S * 0.2)
    assert served_at(ticket) == "b"
    assert served_at(busy) == "a"


def test_a_ticket_gets_its_warm_pool_if_that_becomes_free_meanwhile() -> None:
    two = Two()
    two.warm(seconds=WAIT_S / 2, a=MUCH)
    ticket = two.warm(a=MUCH)
    two.run(WAIT_S)
    assert served_at(ticket) == "a"


def test_a_ticket_declines_a_cold_slot_once() -> None:
    two = Two()
    two.warm(seconds=100, a=MUCH)
    first = two.warm(seconds=1, a=MUCH)
    two.run(WAIT_S * 1.1)
    assert served_at(first) == "b"
    second = two.warm(a=MUCH)
    third = two.warm(a=MUCH)
    two.run(1.01)
    assert served_at(second) == "b", "two waited, so none declined"
    two.run(1.01 + WAIT_S)
    assert served_at(third) == "b"


def test_no_slot_idles_while_another_ticket_could_use_it() -> None:
    two = Two()
    two.warm(seconds=100, a=MUCH)
    patient = two.warm(a=MUCH)
    other = two.submit("u")
    assert other.granted or patient.granted
    assert two.a.free + two.b.free == 0


def test_a_short_beginning_is_not_worth_a_wait() -> None:
    two = Two()
    two.warm(seconds=100, a=100)
    assert served_at(two.warm(a=100)) == "b"


def test_a_warm_pool_is_not_taken_from_the_ticket_that_is_next_there() -> None:
    """`only_a` waits for the only pool that serves its model. The other ticket could go to either pool."""
    a, b = SlotPool("a", 1), SlotPool("b", 1)
    two = Simulation(a, b, limits=LIMITS, only=[a])
    holders = [two.submit("h", seconds=1), two.submit("h", seconds=1)]
    only_a = two.submit("u", model="only")
    either = two.submit("t", warmth={"a": MUCH})
    two.run(1.0 + WAIT_S * 2)
    assert all(request.granted for request in (*holders, only_a, either))
    assert (served_at(only_a), served_at(either)) == ("a", "b")


@pytest.mark.parametrize("change", ["stops admitting", "is withdrawn"])
def test_a_patient_ticket_does_not_wait_for_a_slot_that_will_not_come(change: str) -> None:
    two = Two()
    two.warm(seconds=100, a=MUCH)
    ticket = two.warm(a=MUCH)
    if change == "stops admitting":
        two.a.admitting = False
        two.dispatch()
        assert served_at(ticket) == "b"
    else:
        two.withdraw(ticket)
        assert two.scheduler.next_tick_at() is None


def test_demands_that_differ_in_warmth_only_have_the_same_hash() -> None:
    assert hash(Demand("t", "m")) == hash(Demand("t", "m", warmth={"a": 1}))
