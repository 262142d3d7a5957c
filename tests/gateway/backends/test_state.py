"""The state of a backend as a function of its facts, over the whole table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from slotgate.gateway.backends.circuit_breaker import CircuitState
from slotgate.gateway.backends.state import (
    TRANSITIONS,
    BackendFacts,
    BackendState,
    IllegalBackendTransitionError,
    LastHealth,
    ProcessState,
    backend_state,
    check_transition,
    with_process,
)
from slotgate.gateway.processes.state import TRANSITIONS as PROCESS_TRANSITIONS

ALL_FACTS = [
    BackendFacts(*values)
    for values in product(
        (None, *ProcessState), LastHealth, (False, True), (False, True), (False, True), CircuitState
    )
]
CIRCUIT_CHANGES = {
    CircuitState.CLOSED: [CircuitState.OPEN],
    CircuitState.OPEN: [CircuitState.HALF_OPEN, CircuitState.CLOSED],
    CircuitState.HALF_OPEN: [CircuitState.OPEN, CircuitState.CLOSED],
}
PROCESS_ALONE = {
    ProcessState.STARTING: BackendState.STARTING,
    ProcessState.BACKOFF: BackendState.STARTING,
    ProcessState.LOADING: BackendState.LOADING,
    ProcessState.READY: BackendState.LOADING,
    ProcessState.GIVEN_UP: BackendState.GIVEN_UP,
    ProcessState.STOPPING: BackendState.STOPPING,
    ProcessState.STOPPED: BackendState.UNLOADED,
}
HEALTH_ALONE = {
    LastHealth.NOT_ASKED: BackendState.STARTING,
    LastHealth.LOADING: BackendState.LOADING,
    LastHealth.GOOD: BackendState.READY,
    LastHealth.STREAMING: BackendState.BUSY,
    LastHealth.MISSED: BackendState.UNREACHABLE,
}


def changes(facts: BackendFacts) -> Iterator[BackendFacts]:
    """Yield the facts after each single change that can happen to them."""
    if facts.process is not None:
        for process in PROCESS_TRANSITIONS[facts.process].values():
            yield with_process(facts, process)
        if facts.process.may_become_ready:
            yield replace(facts, leaving=not facts.leaving)
        yield replace(facts, may_load=not facts.may_load)
    yield replace(facts, drained=not facts.drained)
    for circuit in CIRCUIT_CHANGES[facts.circuit]:
        yield replace(facts, circuit=circuit)
    if facts.can_be_asked:
        for health in (LastHealth.LOADING, LastHealth.GOOD, LastHealth.MISSED):
            yield replace(facts, health=health)
        if facts.health is LastHealth.GOOD:
            yield replace(facts, health=LastHealth.STREAMING)


def possible_transitions() -> dict[BackendState, set[BackendState]]:
    """Follow every change from every beginning, and return the pairs of states that occur."""
    found: dict[BackendState, set[BackendState]] = {state: set() for state in BackendState}
    todo = [BackendFacts(), *(BackendFacts(process) for process in ProcessState)]
    seen = set(todo)
    while todo:
        facts = todo.pop()
        for changed in changes(facts):
            if backend_state(changed) is not backend_state(facts):
                found[backend_state(facts)].add(backend_state(changed))
            if changed not in seen:
                seen.add(changed)
                todo.append(changed)
    return found


def states_where(**known: object) -> set[BackendState]:
    """Return the states of all facts that have these values."""
    return {
        backend_state(facts)
        for facts in ALL_FACTS
        if all(getattr(facts, name) == value for name, value in known.items())
    }


@pytest.mark.parametrize(("process", "state"), PROCESS_ALONE.items())
def test_state_of_a_process_whose_health_is_unknown(process: ProcessState, state: BackendState) -> None:
    assert backend_state(BackendFacts(process)) is state


@pytest.mark.parametrize(("health", "state"), HEALTH_ALONE.items())
def test_state_of_a_backend_without_process_follows_its_health(
    health: LastHealth, state: BackendState
) -> None:
    assert backend_state(BackendFacts(health=health)) is state


def test_health_and_circuit_do_not_count_while_the_process_does_not_serve() -> None:
    for process in set(ProcessState) - {ProcessState.READY}:
        states = states_where(process=process, drained=False, leaving=False, may_load=True)
        assert states == {PROCESS_ALONE[process]}


def test_a_ready_process_is_loading_until_its_health_is_known() -> None:
    served = {health: {HEALTH_ALONE[health]} for health in LastHealth}
    served[LastHealth.NOT_ASKED] = {BackendState.LOADING}
    for health, states in served.items():
        found = states_where(
            process=ProcessState.READY,
            health=health,
            drained=False,
            leaving=False,
            circuit=CircuitState.CLOSED,
        )
        assert found == states


@pytest.mark.parametrize("process", [None, ProcessState.READY])
def test_an_open_circuit_makes_a_serving_backend_silent(process: ProcessState | None) -> None:
    known = {"process": process, "drained": False, "leaving": False}
    assert states_where(circuit=CircuitState.OPEN, **known) == {BackendState.SILENT}
    assert BackendState.SILENT not in states_where(circuit=CircuitState.HALF_OPEN, **known)


def test_a_drained_backend_is_drained_or_stopped_whatever_else_is_known() -> None:
    assert states_where(drained=True, process=ProcessState.STOPPED) == {BackendState.STOPPED}
    for process in {None, *ProcessState} - {ProcessState.STOPPED}:
        assert states_where(drained=True, process=process) == {BackendState.DRAINED}


def test_a_leaving_process_is_leaving_until_it_stops() -> None:
    for process in ProcessState:
        if process.may_become_ready:
            assert states_where(leaving=True, drained=False, process=process) == {BackendState.LEAVING}


def test_a_stopped_process_that_no_request_loads_is_gone() -> None:
    assert states_where(process=ProcessState.STOPPED, may_load=False) == {BackendState.STOPPED}


def test_each_state_answers_the_derived_questions() -> None:
    def those(question: str) -> set[BackendState]:
        return {state for state in BackendState if getattr(state, question)}

    assert those("is_coming") == {BackendState.STARTING, BackendState.LOADING}
    assert those("is_up") == {BackendState.READY, BackendState.BUSY}
    assert those("is_failed") == {BackendState.UNREACHABLE, BackendState.SILENT, BackendState.GIVEN_UP}
    assert those("is_gone") == {BackendState.DRAINED, BackendState.GIVEN_UP, BackendState.STOPPED}
    assert those("may_become_ready") == {
        BackendState.STARTING,
        BackendState.LOADING,
        BackendState.BUSY,
        BackendState.LEAVING,
        BackendState.STOPPING,
        BackendState.UNLOADED,
    }


def test_status_and_metrics_show_seven_names() -> None:
    assert list(dict.fromkeys(state.label for state in BackendState)) == [
        "starting",
        "loading",
        "ready",
        "busy-unreachable",
        "draining",
        "failed",
        "stopped",
    ]


def test_the_table_allows_only_transitions_that_one_change_can_cause() -> None:
    assert {state: set(following) for state, following in TRANSITIONS.items()} == possible_transitions()


def test_the_table_forbids_55_of_132_transitions() -> None:
    assert sum(len(following) for following in TRANSITIONS.values()) == 132 - 55


@pytest.mark.parametrize(("before", "after"), list(product(BackendState, BackendState)))
def test_each_transition_is_allowed_or_one_clear_error(before: BackendState, after: BackendState) -> None:
    if after is before or after in TRANSITIONS[before]:
        check_transition(before, after)
    else:
        with pytest.raises(
            IllegalBackendTransitionError, match=f"^{before.name} cannot become {after.name}$"
        ):
            check_transition(before, after)


def test_a_new_process_starts_without_the_health_and_the_timeouts_of_the_old_one() -> None:
    old = BackendFacts(
        ProcessState.LOADING, health=LastHealth.MISSED, leaving=True, circuit=CircuitState.OPEN
    )
    assert with_process(old, ProcessState.READY) == BackendFacts(ProcessState.READY)


def test_a_drain_order_outlives_the_process() -> None:
    assert with_process(BackendFacts(ProcessState.READY, drained=True), ProcessState.BACKOFF).drained


def test_loads_is_true_while_a_model_is_on_its_way_although_its_backend_is_drained() -> None:
    coming = {ProcessState.STARTING, ProcessState.LOADING, ProcessState.BACKOFF, ProcessState.READY}
    loading = {facts.process for facts in ALL_FACTS if facts.loads and facts.drained}
    assert loading == {None, *coming}
    assert not BackendFacts(ProcessState.READY, health=LastHealth.GOOD).loads
