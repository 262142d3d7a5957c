"""A full queue: one tenant's flood is that tenant's problem."""

from __future__ import annotations

import pytest

from slotgate.admission import QueueLimits, Refusal, Refused, SlotPool
from tests.admission.simulation import Simulation


def limits(*, tickets: int = 256, of_one: int = 64) -> QueueLimits:
    return QueueLimits(tickets, of_one, queue_timeout_s=1000.0)


def full(**bounds: int) -> Simulation:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(**bounds))
    simulation.submit("running", seconds=500.0)
    return simulation


def test_four_tenants_at_their_bound_shut_no_fifth_one_out() -> None:
    simulation = full()
    flood = [simulation.submit(f"t{number % 4}") for number in range(256)]
    newcomer = simulation.submit("newcomer")
    assert newcomer.ticket.queued
    refused = [request for request in flood if not request.ticket.queued]
    assert [request.ticket.refusal for request in refused] == [Refusal.QUEUE_FULL]
    assert refused[0] in flood[-4:], "the newest ticket of its tenant"
    assert simulation.scheduler.depth == 256
    assert simulation.scheduler.refused == {Refusal.QUEUE_FULL: 1}


def test_every_tenant_is_sure_of_an_equal_part_of_the_places() -> None:
    simulation = full(tickets=60, of_one=60)
    for _ in range(60):
        simulation.submit("flood")
    for _ in range(20):
        simulation.submit("a")
        simulation.submit("b")
    assert simulation.scheduler.status().by_tenant == {"flood": 20, "a": 20, "b": 20}
    for tenant in ("flood", "a", "b"):
        with pytest.raises(Refused) as refused:
            simulation.submit(tenant)
        assert refused.value.refusal is Refusal.QUEUE_FULL
        assert refused.value.retry_after_s
    assert simulation.scheduler.status().by_tenant == {"flood": 20, "a": 20, "b": 20}


def test_a_flood_in_one_model_leaves_the_places_of_another_alone() -> None:
    simulation = Simulation(a=[SlotPool("a", 1)], b=[SlotPool("b", 1)], limits=limits(tickets=2, of_one=9))
    for model in "aab":
        simulation.submit("flood", model=model, seconds=500.0)
    other = simulation.submit("other", model="b")
    simulation.submit("flood", model="a")
    simulation.submit("third", model="a")
    assert other.ticket.queued
