"""A full queue: one tenant's flood is that tenant's problem."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, QueueLimits, Refusal, Refused, SlotPool, Ticket
from slotgate.admission.queue_bounds import make_room
from tests.admission.simulation import Simulation, ignore

MIB = 1024 * 1024


def limits(*, tickets: int = 256, of_one: int = 64, mib: int = 256) -> QueueLimits:
    return QueueLimits(tickets, of_one, mib * MIB, queue_timeout_s=1000.0)


def full(**bounds: int) -> Simulation:
    simulation = Simulation(SlotPool("gpu", 1), limits=limits(**bounds))
    simulation.submit("running", seconds=500.0)
    return simulation


def sent(simulation: Simulation, tenant: str, mib: int) -> Ticket:
    return simulation.scheduler.submit(Demand(tenant, "m", body_bytes=mib * MIB), ignore)


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


def test_big_bodies_of_one_tenant_shut_no_other_tenant_out() -> None:
    simulation = full()
    big = [sent(simulation, "flood", 32) for _ in range(8)]
    small = sent(simulation, "other", 1)
    assert small.queued
    assert [ticket.queued for ticket in big] == [True] * 7 + [False]
    with pytest.raises(Refused):
        sent(simulation, "flood", 32)
    assert sent(simulation, "other", 31).queued


def test_bytes_are_shared_equally_in_the_end() -> None:
    simulation = full(mib=100)
    for _ in range(10):
        sent(simulation, "a", 10)
    for _ in range(5):
        sent(simulation, "b", 10)
    with pytest.raises(Refused):
        sent(simulation, "b", 10)
    assert simulation.scheduler.status().by_tenant == {"a": 5, "b": 5}


def test_a_ticket_without_a_body_is_not_taken_out_for_bytes() -> None:
    simulation = full(mib=10)
    with_body = sent(simulation, "flood", 9)
    without = simulation.submit("flood")
    assert sent(simulation, "other", 5).queued
    assert (with_body.refusal, without.ticket.queued) == (Refusal.QUEUE_FULL, True)


def test_a_body_that_is_too_large_to_wait_removes_no_ticket() -> None:
    simulation = full(mib=10)
    waiting = [sent(simulation, "a", 5), sent(simulation, "b", 4)]
    with pytest.raises(Refused):
        sent(simulation, "late", 11)
    assert all(ticket.queued for ticket in waiting)


def test_no_ticket_leaves_in_vain() -> None:
    """If a ticket of `a` left, the newcomer's tenant would use most, and the newcomer would have to leave
    too.
    """
    tickets = [
        Ticket(Demand(tenant, "m", body_bytes=size), seq=seq, enqueued_at=0.0, on_settled=ignore)
        for seq, (tenant, size) in enumerate([("a", 10), ("a", 5), ("b", 13)])
    ]
    used = {"a": 15, "b": 13}
    room = make_room(tickets[2], lambda: reversed(tickets), used, 14, lambda one: one.demand.body_bytes)
    assert room is None


def test_a_flood_in_one_model_leaves_the_places_of_another_alone() -> None:
    simulation = Simulation(a=[SlotPool("a", 1)], b=[SlotPool("b", 1)], limits=limits(tickets=2, of_one=9))
    for model in "aab":
        simulation.submit("flood", model=model, seconds=500.0)
    other = simulation.submit("other", model="b")
    simulation.submit("flood", model="a")
    simulation.submit("third", model="a")
    assert other.ticket.queued
