"""The cost of an operation does not grow with the number of tickets. It is counted in calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from slotgate.admission import SlotPool
from tests.admission.simulation import SimulatedRequest, Simulation

FEW, MANY = 20, 10_000
ROUNDS = 300


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions while `action` runs."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


class Crowd:
    """Two slots in use, and waiting requests: all of one tenant, or each of a tenant of its own."""

    def __init__(self, waiting: int, *, width: int, own_tenants: bool) -> None:
        self.own_tenants = own_tenants
        self.width = width
        self.simulation = Simulation(SlotPool("gpu", 2), SlotPool("loading", 0, admitting=False))
        for _ in range(2):
            self.simulation.submit()
        self.waiting = [self.submit(number) for number in range(waiting)]

    def submit(self, number: int) -> SimulatedRequest:
        tenant = f"t{number}" if self.own_tenants else "t"
        return self.simulation.submit(tenant, width=self.width, seconds=1.0 + number % 7)

    def come_and_leave(self) -> None:
        for number in range(ROUNDS):
            self.simulation.withdraw(self.submit(number))

    def leave_from_the_middle(self) -> None:
        middle = len(self.waiting) // 2
        for number in range(ROUNDS):
            self.simulation.withdraw(self.waiting[middle])
            self.waiting[middle] = self.submit(number)

    def be_served(self) -> None:
        """Serve requests and submit as many, so that the crowd keeps its size."""
        for number in range(ROUNDS):
            self.submit(number)
            self.simulation.release(self.simulation.served[number])

    def time_passes(self) -> None:
        for _ in range(ROUNDS):
            self.simulation.scheduler.tick()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2], ids=["narrow", "wide"])
@pytest.mark.parametrize("own_tenants", [False, True], ids=["one tenant", "own tenants"])
@pytest.mark.parametrize(
    "action", [Crowd.come_and_leave, Crowd.leave_from_the_middle, Crowd.be_served, Crowd.time_passes]
)
def test_an_operation_costs_the_same_with_ten_thousand_waiting(
    action: Callable[[Crowd], None], own_tenants: bool, width: int
) -> None:
    few = Crowd(FEW, width=width, own_tenants=own_tenants)
    many = Crowd(MANY, width=width, own_tenants=own_tenants)
    assert calls_of(lambda: action(many)) <= 1.5 * calls_of(lambda: action(few))


@pytest.mark.slow
@pytest.mark.parametrize("own_tenants", [False, True], ids=["one tenant", "own tenants"])
def test_the_ten_thousandth_costs_as_much_to_submit_as_the_first(own_tenants: bool) -> None:
    crowd = Crowd(0, width=1, own_tenants=own_tenants)
    first = calls_of(lambda: [crowd.submit(number) for number in range(ROUNDS)])
    for number in range(ROUNDS, MANY):
        crowd.submit(number)
    last = calls_of(lambda: [crowd.submit(number) for number in range(MANY, MANY + ROUNDS)])
    assert last <= 1.5 * first


def calls_with(pools: int, models: int, tickets: int) -> tuple[float, float]:
    """Return the calls of a release with the grant that follows, and of a question for a position."""
    served = [SlotPool(f"gpu{number}", 4) for number in range(pools)]
    routes = {
        f"m{number}": [served[number % pools], served[(7 * number + 1) % pools]] for number in range(models)
    }
    simulation = Simulation()
    simulation.route(**routes)
    requests = [
        simulation.submit(f"t{number % 300}", model=f"m{number % models}", seconds=10**6)
        for number in range(4 * pools + tickets)
    ]
    running = [request for request in requests if request.granted][:100]
    waiting = [request for request in requests if not request.granted][-100:]
    scheduler = simulation.scheduler

    def release_all() -> None:
        for request in running:
            simulation.release(request)

    release = calls_of(release_all)
    position = calls_of(lambda: [scheduler.position(request.ticket) for request in waiting])
    return release / len(running), position / len(waiting)


@pytest.mark.slow
def test_a_decision_with_a_hundred_pools_costs_little_more_than_with_a_few() -> None:
    """A decision is under a tenth of a millisecond, and a position under one."""
    few, few_position = calls_with(4, 2, 500)
    many, many_position = calls_with(100, 50, 10_000)
    assert many <= 2 * few
    assert many_position <= 3000, few_position
