"""The choice of a pool: the quickest free one, and among equally quick ones the freest."""

from __future__ import annotations

from collections import Counter

from slotgate.admission import SlotPool
from tests.admission.simulation import Simulation


def two_pools(**slowness: float) -> Simulation:
    simulation = Simulation(SlotPool("small", 2), SlotPool("large", 4), slowness=slowness)
    for _ in range(2):
        simulation.submit()
        simulation.run(100.0)
    return simulation


def pools_of(simulation: Simulation, first: int = 0) -> list[str]:
    return [request.lease.pool_name for request in simulation.served[first:]]


def test_each_pool_is_tried_once_the_freest_first() -> None:
    assert pools_of(two_pools()) == ["large", "small"]


def test_a_request_goes_to_the_quick_pool_although_the_slow_one_is_freer() -> None:
    simulation = two_pools(large=20.0)
    for _ in range(5):
        simulation.submit()
        simulation.run(100.0)
    assert pools_of(simulation, 2) == ["small"] * 5


def test_no_slot_of_the_slow_pool_idles_while_a_request_waits() -> None:
    simulation = two_pools(large=20.0)
    for _ in range(6):
        simulation.submit()
    assert Counter(pools_of(simulation, 2)) == {"small": 2, "large": 4}


def test_pools_of_nearly_one_speed_share_the_load_by_free_slots() -> None:
    simulation = two_pools(small=0.9)
    for _ in range(4):
        simulation.submit()
    assert Counter(pools_of(simulation, 2)) == {"large": 3, "small": 1}


def test_a_pool_is_known_for_all_tenants_and_its_speed_scales_the_guess_of_each() -> None:
    simulation = two_pools(large=20.0)
    newcomer = simulation.submit("newcomer", seconds=5.0)
    assert newcomer.lease.pool_name == "small"
    assert newcomer.lease.expected_s == 1.0


def test_a_waiting_request_gets_the_quickest_of_the_pools_that_are_free() -> None:
    simulation = two_pools(large=20.0)
    running = [simulation.submit(seconds=50.0) for _ in range(6)]
    waiting = simulation.submit()
    small = next(request for request in running if request.lease.pool_name == "small")
    large = next(request for request in running if request.lease.pool_name == "large")
    for pool in list(simulation.scheduler._pool_queues):
        pool.admitting = False
    for request in (large, small):
        simulation.release(request)
    for pool in list(simulation.scheduler._pool_queues):
        pool.admitting = True
    simulation.dispatch()
    assert waiting.lease.pool_name == "small"
