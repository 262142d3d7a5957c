"""Slots as cells: everybody stays where they are."""

from typing import Any

from slotgate.admission import Demand, Lease, Outcome, SlotPool
from slotgate.gateway.admin.slot_view import SlotView
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.context import RequestContext, TenantIdentity


class Backend:
    """A pool of four, and leases on it."""

    def __init__(self) -> None:
        self.pool = SlotPool("gpu0", 4)
        self.cells = SlotView()
        self.held: dict[Lease, tuple[RequestContext, Progress]] = {}

    def lease(self, name: str, *, width: int = 1, tokens: int = 0, stream: bool = True) -> Lease:
        demand = Demand(tenant=name, model="m", width=width)
        lease = Lease(
            demand,
            pool_name="gpu0",
            clock=lambda: 10.0,
            on_cost=lambda _: None,
            on_release=lambda ended: self.pool.give_back(ended, 12.0),
        )
        self.pool.take(lease)
        context = RequestContext(f"id-{name}", 9.0, tenant=TenantIdentity(name), stream=stream)
        self.held[lease] = (context, Progress(lease, tokens, 11.0 if tokens else None))
        return lease

    @property
    def row(self) -> list[dict[str, Any]]:
        return self.cells.row(self.pool, self.held, 15.0)

    @property
    def states(self) -> list[str]:
        return [cell.get("tenant") or cell["state"] for cell in self.row]


def test_a_cell_says_what_its_request_does_for_whom_and_since_when() -> None:
    backend = Backend()
    backend.lease("a")
    backend.lease("b", tokens=7)
    backend.lease("c", stream=False)
    assert backend.row == [
        {"state": "prefill", "age_s": 5.0, "tenant": "a", "model": "m", "request": "id-a", "tokens": 0},
        {"state": "generating", "age_s": 5.0, "tenant": "b", "model": "m", "request": "id-b", "tokens": 7},
        {"state": "working", "age_s": 5.0, "tenant": "c", "model": "m", "request": "id-c", "tokens": 0},
        {"state": "idle"},
    ]


def test_who_has_a_cell_stays_in_it_when_others_leave() -> None:
    backend = Backend()
    first, _ = backend.lease("a"), backend.lease("b")
    assert backend.states == ["a", "b", "idle", "idle"]
    first.release(Outcome.FINISHED)
    assert backend.states == ["idle", "b", "idle", "idle"]
    backend.lease("c")
    assert backend.states == ["c", "b", "idle", "idle"]


def test_an_abandoned_slot_is_shown_where_its_request_was_with_its_age() -> None:
    backend = Backend()
    backend.lease("a")
    second = backend.lease("b")
    backend.lease("c")
    assert backend.states == ["a", "b", "c", "idle"]
    second.release(Outcome.ABANDONED)
    backend.lease("d")
    assert backend.states == ["a", "quarantined", "c", "d"]
    assert backend.row[1] == {"state": "quarantined", "age_s": 3.0}


def test_a_wide_request_has_as_many_cells_as_slots_and_so_has_what_is_left_of_it() -> None:
    backend = Backend()
    wide = backend.lease("a", width=3)
    assert backend.states == ["a", "a", "a", "idle"]
    wide.release(Outcome.ABANDONED)
    assert backend.states == ["quarantined", "quarantined", "quarantined", "idle"]
    backend.pool.restarted()
    assert backend.states == ["idle"] * 4


def test_foreign_work_is_shown() -> None:
    backend = Backend()
    backend.pool.foreign = 1
    backend.lease("a")
    assert sorted(backend.states) == ["a", "foreign", "idle", "idle"]


def test_a_backend_that_shrank_shows_what_still_runs_and_no_more() -> None:
    backend = Backend()
    leases = [backend.lease(name) for name in "abcd"]
    assert backend.states == ["a", "b", "c", "d"]
    backend.pool.total = 2
    assert backend.states == ["a", "b", "c", "d"]
    leases[3].release(Outcome.FINISHED)
    leases[2].release(Outcome.FINISHED)
    assert backend.states == ["a", "b"]


def test_a_slot_that_is_being_cleaned_is_not_shown_as_idle() -> None:
    backend = Backend()
    backend.pool.unclean[2] = 13.0
    assert backend.row[0] == {"state": "quarantined", "age_s": 2.0}
    assert backend.states.count("idle") == 3
