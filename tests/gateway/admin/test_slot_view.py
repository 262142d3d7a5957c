"""Slots as cells: a lease keeps its cell until it ends."""

from __future__ import annotations

from typing import Any

from slotgate.admission import Demand, Lease, Outcome, SlotPool
from slotgate.gateway.admin.slot_view import SlotView
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.context import RequestContext, TenantIdentity


class ShownPool:
    """A pool of four slots, the leases on it, and its row of cells."""

    def __init__(self) -> None:
        self.pool = SlotPool("gpu0", 4)
        self.view = SlotView()
        self.holders: dict[Lease, tuple[RequestContext, Progress]] = {}

    def lease(self, name: str, *, width: int = 1, tokens: int = 0, stream: bool = True) -> Lease:
        demand = Demand(tenant=name, model="m", width=width)
        lease = Lease(
            demand,
            pool_name="gpu0",
            clock=lambda: 10.0,
            on_release=lambda ended: self.pool.give_back(ended, 12.0),
        )
        self.pool.take(lease)
        context = RequestContext(f"id-{name}", 9.0, tenant=TenantIdentity(name), stream=stream)
        self.holders[lease] = (context, Progress((lease,), 0, 0, tokens, 11.0 if tokens else None))
        return lease

    @property
    def row(self) -> list[dict[str, Any]]:
        return self.view.row(self.pool, self.holders, 15.0)

    @property
    def states(self) -> list[str]:
        return [cell.get("tenant") or cell["state"] for cell in self.row]


def test_a_cell_shows_the_state_tenant_and_age_of_its_request() -> None:
    shown_pool = ShownPool()
    shown_pool.lease("a")
    shown_pool.lease("b", tokens=7)
    shown_pool.lease("c", stream=False)
    assert shown_pool.row == [
        {"state": "prefill", "age_s": 5.0, "tenant": "a", "model": "m", "request": "id-a", "tokens": 0},
        {"state": "generating", "age_s": 5.0, "tenant": "b", "model": "m", "request": "id-b", "tokens": 7},
        {"state": "working", "age_s": 5.0, "tenant": "c", "model": "m", "request": "id-c", "tokens": 0},
        {"state": "idle"},
    ]


def test_a_lease_keeps_its_cell_when_others_end() -> None:
    shown_pool = ShownPool()
    first, _ = shown_pool.lease("a"), shown_pool.lease("b")
    assert shown_pool.states == ["a", "b", "idle", "idle"]
    first.release(Outcome.FINISHED)
    assert shown_pool.states == ["idle", "b", "idle", "idle"]
    shown_pool.lease("c")
    assert shown_pool.states == ["c", "b", "idle", "idle"]


def test_a_quarantined_slot_takes_the_cell_of_its_request() -> None:
    shown_pool = ShownPool()
    shown_pool.lease("a")
    second = shown_pool.lease("b")
    shown_pool.lease("c")
    assert shown_pool.states == ["a", "b", "c", "idle"]
    second.release(Outcome.ABANDONED)
    shown_pool.lease("d")
    assert shown_pool.states == ["a", "quarantined", "c", "d"]
    assert shown_pool.row[1] == {"state": "quarantined", "age_s": 3.0}


def test_a_request_with_several_slots_has_as_many_cells_also_in_quarantine() -> None:
    shown_pool = ShownPool()
    wide = shown_pool.lease("a", width=3)
    assert shown_pool.states == ["a", "a", "a", "idle"]
    wide.release(Outcome.ABANDONED)
    assert shown_pool.states == ["quarantined", "quarantined", "quarantined", "idle"]
    shown_pool.pool.restarted()
    assert shown_pool.states == ["idle"] * 4


def test_a_slot_used_by_another_client_of_the_backend_is_shown() -> None:
    shown_pool = ShownPool()
    shown_pool.pool.foreign = 1
    shown_pool.lease("a")
    assert sorted(shown_pool.states) == ["a", "foreign", "idle", "idle"]


def test_a_backend_that_shrank_keeps_only_the_cells_that_are_in_use() -> None:
    shown_pool = ShownPool()
    leases = [shown_pool.lease(name) for name in "abcd"]
    assert shown_pool.states == ["a", "b", "c", "d"]
    shown_pool.pool.total = 2
    assert shown_pool.states == ["a", "b", "c", "d"]
    leases[3].release(Outcome.FINISHED)
    leases[2].release(Outcome.FINISHED)
    assert shown_pool.states == ["a", "b"]


def test_a_slot_that_is_being_erased_is_not_shown_as_idle() -> None:
    shown_pool = ShownPool()
    shown_pool.pool.unclean[2] = 13.0
    assert shown_pool.row[0] == {"state": "quarantined", "age_s": 2.0}
    assert shown_pool.states.count("idle") == 3
