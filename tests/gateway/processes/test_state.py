"""The transitions of a llama-server process."""

from __future__ import annotations

import pytest

from slotgate.gateway.processes.state import (
    TRANSITIONS,
    IllegalTransitionError,
    ProcessEvent,
    ProcessState,
    next_state,
)


def test_every_state_has_a_row_and_every_event_a_place() -> None:
    assert set(TRANSITIONS) == set(ProcessState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(ProcessEvent)


def test_an_event_without_meaning_is_one_clear_error() -> None:
    with pytest.raises(IllegalTransitionError, match="SPAWNED while READY"):
        next_state(ProcessState.READY, ProcessEvent.SPAWNED)


def test_scenario_126_an_intended_stop_never_passes_through_a_failure() -> None:
    for state, row in TRANSITIONS.items():
        if ProcessEvent.STOP in row:
            after = next_state(state, ProcessEvent.STOP)
            assert after in {ProcessState.STOPPING, ProcessState.STOPPED}
    assert TRANSITIONS[ProcessState.STOPPING] == {ProcessEvent.REAPED: ProcessState.STOPPED}


def test_scenario_117_no_state_is_for_ever() -> None:
    for state in ProcessState:
        assert TRANSITIONS[state], f"no way out of {state}"
