"""Decisions to load and to unload, and a simulation without processes that carries them out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.processes.residency import (
    OVERFLOW_S,
    LoadingPlan,
    LoadOrder,
    Residence,
    Resident,
    Step,
    plan,
)

GROUP = {"gpu": 1}
KEEPS_S = 10.0
LINGER_S = 1.0
NOW = 1000.0


def resident(
    name: str,
    residence: Residence = Residence.STOPPED,
    since: float = 0.0,
    **rest: Any,  # noqa: ANN401
) -> Resident:
    known: dict[str, Any] = {
        "models": frozenset({name}),
        "loads_on_request": True,
        "group": "gpu",
        "keeps_s": KEEPS_S,
        "linger_s": LINGER_S,
        **rest,
    }
    return Resident(name, residence, since, **known)


def steps(*residents: Resident, now: float = NOW, **waiting: float) -> dict[str, Step]:
    return {name: step for step, name in plan(residents, waiting, GROUP, now).steps}


def look_at(*residents: Resident, now: float = NOW, **waiting: float) -> float | None:
    return plan(residents, waiting, GROUP, now).look_at


def test_no_model_is_loaded_without_a_waiting_request() -> None:
    assert plan([resident("a"), resident("b")], {}, GROUP, NOW) == LoadingPlan((), None)


def test_a_model_with_waiting_requests_is_loaded_if_there_is_room() -> None:
    assert steps(resident("a"), a=NOW) == {"a": Step.LOAD}
    assert steps(resident("a", group=""), resident("b", group=""), a=NOW, b=NOW) == {
        "a": Step.LOAD,
        "b": Step.LOAD,
    }


def test_a_loading_model_is_not_loaded_twice() -> None:
    a, spare = resident("a", Residence.COMING), resident("spare", models=frozenset({"a"}), group="")
    assert steps(a, spare, a=NOW) == {}


def test_a_backend_that_requests_may_not_load_stays_stopped() -> None:
    assert steps(resident("a", loads_on_request=False), a=NOW) == {}


def test_the_longest_waiting_model_gets_the_only_place() -> None:
    assert steps(resident("a"), resident("b"), a=NOW - 1, b=NOW - 2) == {"b": Step.LOAD}


@pytest.mark.parametrize(("loaded_at", "idle_since"), [(NOW, 0.0), (NOW - 5, NOW)])
def test_an_unused_member_makes_room_after_it_has_lingered(loaded_at: float, idle_since: float) -> None:
    a, b = resident("a", Residence.LOADED, loaded_at, idle_since=idle_since), resident("b")
    assert (steps(a, b, b=NOW), look_at(a, b, b=NOW)) == ({}, NOW + LINGER_S)
    assert steps(a, b, b=NOW, now=NOW + LINGER_S) == {"a": Step.STOP}


def test_an_unused_member_whose_turn_is_over_makes_room_at_once() -> None:
    a = resident("a", Residence.LOADED, NOW - KEEPS_S, idle_since=NOW)
    assert steps(a, resident("b"), b=NOW) == {"a": Step.STOP}


@pytest.mark.parametrize("residence", [Residence.STOPPED, Residence.LEAVING, Residence.STOPPING])
def test_requests_wait_for_a_place_while_their_model_has_none(residence: Residence) -> None:
    a, b = resident("a", Residence.LOADED, NOW, leases=1), resident("b", residence)
    assert plan([a, b], {"b": NOW}, GROUP, NOW).waits_for_place == {"b"}
    assert plan([a, b], {"a": NOW}, GROUP, NOW).waits_for_place == set()


@pytest.mark.parametrize("residence", [Residence.COMING, Residence.LOADED, Residence.FAILED])
def test_no_request_waits_for_a_place_that_its_model_has_or_does_not_get(residence: Residence) -> None:
    assert plan([resident("a", residence)], {"a": NOW}, GROUP, NOW).waits_for_place == set()


def test_no_request_waits_for_a_place_if_its_model_is_about_to_be_loaded() -> None:
    assert plan([resident("a")], {"a": NOW}, GROUP, NOW).waits_for_place == set()


def test_the_longest_idle_member_makes_room() -> None:
    idle = [resident(name, Residence.LOADED, idle_since=since) for name, since in (("a", 9.0), ("b", 5.0))]
    found = plan([*idle, resident("c")], {"c": NOW}, {"gpu": 2}, NOW)
    assert found.steps == ((Step.STOP, "b"),)


@pytest.mark.parametrize(("leases", "step"), [(1, Step.LEAVE), (0, Step.STOP)])
def test_a_used_member_keeps_its_place_for_the_residence_time(leases: int, step: Step) -> None:
    a, b = resident("a", Residence.LOADED, NOW - KEEPS_S + 1, leases=leases), resident("b")
    waiting = {"b": NOW} if leases else {"b": NOW, "a": NOW}
    assert steps(a, b, **waiting) == {}
    assert look_at(a, b, **waiting) == NOW + 1
    assert steps(a, b, now=NOW + 1, **waiting) == {"a": step}


def test_an_unloading_waits_for_a_live_lease_without_limit() -> None:
    a = resident("a", Residence.LEAVING, leases=1)
    assert steps(a, resident("b"), b=0.0, now=1e9) == {}
    assert steps(resident("a", Residence.LEAVING), resident("b"), b=0.0) == {"a": Step.STOP}


def test_room_is_made_once() -> None:
    a, b = resident("a", Residence.STOPPING), resident("b", Residence.LOADED)
    assert plan([a, b, resident("c")], {"c": NOW}, {"gpu": 2}, NOW).steps == ()


def test_a_leaving_member_stays_if_no_request_waits_for_its_place() -> None:
    assert steps(resident("a", Residence.LEAVING, leases=1), resident("b")) == {"a": Step.STAY}


def test_a_member_that_made_room_waits_for_its_turn() -> None:
    """Its own queue is older than the queue of the other member."""
    assert steps(resident("a", since=NOW - 1), resident("b"), a=NOW - 90, b=NOW - 20) == {"b": Step.LOAD}


def test_a_loading_member_without_waiting_requests_makes_room() -> None:
    assert steps(resident("a", Residence.COMING), resident("b"), b=NOW) == {"a": Step.STOP}
    assert steps(resident("a", Residence.COMING), resident("b"), a=0.0, b=NOW) == {}


def test_a_further_backend_is_loaded_when_the_first_is_busy_for_a_while() -> None:
    first = resident("first", Residence.LOADED, models=frozenset({"m"}), group="", loads_on_request=False)
    second = resident("second", models=frozenset({"m"}))
    assert steps(first, second, m=NOW) == {}
    assert look_at(first, second, m=NOW) == NOW + OVERFLOW_S
    assert steps(first, second, m=NOW - OVERFLOW_S) == {"second": Step.LOAD}


def test_a_backend_does_not_make_room_for_another_of_its_own_model() -> None:
    both = [resident(name, residence, models=frozenset({"m"}), leases=leases) for name, residence, leases in (
        ("first", Residence.LOADED, 1), ("second", Residence.STOPPED, 0))]  # fmt: skip
    assert steps(*both, m=0.0) == {}


def test_idle_time_begins_with_the_end_of_the_last_lease_or_of_loading() -> None:
    a = resident("a", Residence.LOADED, since=0.0, idle_since=NOW - 30, idle_unload_s=60.0)
    assert (steps(a), look_at(a)) == ({}, NOW + 30)
    assert steps(a, now=NOW + 30) == {"a": Step.STOP}
    fresh = resident("a", Residence.LOADED, since=NOW, idle_since=0.0, idle_unload_s=60.0)
    assert look_at(fresh) == NOW + 60


def test_a_model_with_a_lease_or_a_waiting_request_is_not_unloaded() -> None:
    a = resident("a", Residence.LOADED, idle_unload_s=60.0, leases=1)
    assert steps(a) == {}
    assert steps(resident("a", Residence.LOADED, idle_unload_s=60.0), a=NOW) == {}


def test_a_given_up_process_may_be_tried_again_after_a_rest() -> None:
    a = resident("a", Residence.FAILED, NOW - 60 + 5, rests_s=60.0)
    assert (steps(a, a=NOW), look_at(a)) == ({}, NOW + 5)
    assert steps(a, now=NOW + 5) == {"a": Step.FORGET}
    assert steps(resident("a", Residence.FAILED, loads_on_request=False)) == {}


@pytest.mark.parametrize("leases", [0, 1])
def test_a_process_that_was_given_up_is_not_tried_while_the_group_is_needed(leases: int) -> None:
    broken = resident("a", Residence.FAILED, 0.0, rests_s=60.0, has_failed=True)
    good = resident("b", Residence.LOADED, leases=leases)
    waiting = {} if leases else {"b": NOW}
    assert steps(broken, good, **waiting) == {}
    stopped = resident("a", has_failed=True)
    found = plan([stopped, good], {"a": NOW, **waiting}, GROUP, NOW)
    assert not found.steps
    assert not found.waits_for_place
    assert plan([stopped, good], {"a": NOW, **waiting}, {"gpu": 2}, NOW).steps == ((Step.LOAD, "a"),)


def test_a_process_that_was_given_up_is_tried_when_its_place_is_not_needed() -> None:
    good = resident("b", Residence.LOADED)
    assert steps(resident("a", Residence.FAILED, 0.0, rests_s=60.0), good) == {"a": Step.FORGET}
    assert steps(resident("a", has_failed=True), good, a=NOW) == {"b": Step.STOP}


def test_operators_order_loads_what_was_given_up_at_once() -> None:
    broken = resident("a", Residence.FAILED, NOW, rests_s=60.0, has_failed=True, order=LoadOrder.LOAD)
    assert steps(broken) == {"a": Step.LOAD}


@pytest.mark.parametrize("order", [LoadOrder.UNLOAD, LoadOrder.RESTART])
def test_an_order_to_stop_waits_for_leases_and_cancels_them_after_its_limit(order: LoadOrder) -> None:
    rest: dict[str, Any] = {"order": order, "order_at": NOW, "order_until": NOW + 30}
    assert steps(resident("a", Residence.LOADED, **rest)) == {"a": Step.STOP}
    assert steps(resident("a", Residence.COMING, **rest)) == {"a": Step.STOP}
    assert steps(resident("a", Residence.LOADED, leases=1, **rest)) == {"a": Step.LEAVE}
    leaving = resident("a", Residence.LEAVING, leases=1, **rest)
    assert (steps(leaving), look_at(leaving)) == ({}, NOW + 30)
    assert steps(leaving, now=NOW + 30) == {"a": Step.CANCEL}
    assert steps(resident("a", Residence.LEAVING, **rest)) == {"a": Step.STOP}


def test_a_restart_gets_its_own_place_back() -> None:
    a, b = resident("a", Residence.STOPPING, order=LoadOrder.RESTART, order_at=NOW), resident("b")
    assert steps(a, b, b=0.0) == {}
    a = resident("a", Residence.STOPPED, NOW, order=LoadOrder.RESTART, order_at=NOW)
    assert steps(a, b, b=0.0) == {"a": Step.LOAD}


def test_an_order_to_load_needs_no_request_and_makes_room() -> None:
    a = resident("a", loads_on_request=False, order=LoadOrder.LOAD, order_at=NOW)
    assert steps(a) == {"a": Step.LOAD}
    assert steps(a, resident("b", Residence.LOADED)) == {"b": Step.STOP}


LOAD_S = 3.0
SERVICE_S = 4.0
TICK_S = 0.5


@dataclass
class ResidencySimulation:
    """Residents that load in `LOAD_S` and serve one ticket at a time in `SERVICE_S`."""

    names: tuple[str, ...]
    places: int
    now: float = 0.0
    stages: dict[str, tuple[Residence, float]] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    idle_since: dict[str, float] = field(default_factory=dict)
    queues: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    loads: int = 0

    def __post_init__(self) -> None:
        self.stages = dict.fromkeys(self.names, (Residence.STOPPED, 0.0))
        self.queues = {name: [] for name in self.names}

    def residents(self) -> list[Resident]:
        return [
            resident(
                name,
                *self.stages[name],
                leases=int(name in self.leases),
                idle_since=self.idle_since.get(name, 0.0),
            )
            for name in self.names
        ]

    def step(self) -> None:
        """Let half a second pass."""
        self.now = self.now + TICK_S
        for name, (residence, since) in self.stages.items():
            if residence is Residence.COMING and self.now >= since + LOAD_S:
                self._become(name, Residence.LOADED)
            if name in self.leases and self.now >= self.leases[name]:
                del self.leases[name]
                self.idle_since[name] = self.now
            if self.stages[name][0] is Residence.LOADED and self.queues[name] and name not in self.leases:
                self.waits.append(self.now - self.queues[name].pop(0))
                self.leases[name] = self.now + SERVICE_S
        for _ in range(4):
            self._carry_out()
        assert sum(residence is not Residence.STOPPED for residence, _ in self.stages.values()) <= self.places

    def _carry_out(self) -> None:
        waiting = {name: queue[0] for name, queue in self.queues.items() if queue}
        for step, name in plan(self.residents(), waiting, {"gpu": self.places}, self.now).steps:
            match step:
                case Step.LOAD:
                    assert self.stages[name][0] is Residence.STOPPED
                    self._become(name, Residence.COMING)
                    self.loads += 1
                case Step.LEAVE:
                    self._become(name, Residence.LEAVING)
                case Step.STAY:
                    self._become(name, Residence.LOADED)
                case Step.STOP:
                    assert name not in self.leases, "a live lease was killed"
                    self._become(name, Residence.STOPPED)
                case _:
                    raise AssertionError(step)

    def _become(self, name: str, residence: Residence) -> None:
        self.stages[name] = (residence, self.now)


@pytest.mark.parametrize(("models", "places"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_every_model_of_an_overloaded_group_gets_its_turn_within_a_bound(models: int, places: int) -> None:
    world = ResidencySimulation(tuple("abcdefgh"[:models]), places)
    served: dict[str, list[float]] = {name: [] for name in world.names}
    for queue in world.queues.values():
        queue.extend([0.0] * 10_000)
    for _ in range(1200):
        before = dict(world.leases)
        world.step()
        for name in world.leases.keys() - before.keys():
            served[name].append(world.now)
    turn = KEEPS_S + SERVICE_S + LOAD_S + 5 * TICK_S
    for times in served.values():
        gaps = [after - before for before, after in itertools.pairwise([0.0, *times])]
        assert max(gaps) <= turn * models
    assert world.loads <= 600 / KEEPS_S * places + models, "it swaps more often than residence allows"


@pytest.mark.slow
@given(
    arrivals=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), max_size=40),
    places=st.integers(1, 3),
)
def test_every_model_is_served_in_time_and_no_lease_is_killed(
    arrivals: list[tuple[str, int]], places: int
) -> None:
    world = ResidencySimulation(tuple("abcd"), places)
    due = sorted(arrivals, key=lambda arrival: arrival[1])
    for tick in range(60 + 20 * (len(arrivals) + 4)):
        while due and due[0][1] <= tick:
            world.queues[due.pop(0)[0]].append(world.now)
        world.step()
    assert not due
    assert len(world.waits) == len(arrivals)
