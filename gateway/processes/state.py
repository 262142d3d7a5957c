"""The lifecycle of a llama-server that the gateway runs: its events and its transitions.

        START          SPAWNED           ANSWERED
    STOPPED ──▶ STARTING ──▶ LOADING ──▶ READY
       ▲            │ ▲         │          │
       │            │ │         │ ENDED    │ ENDED
       │      ENDED │ │ RETRY   ▼          │
       │            └─┴──── BACKOFF ◀──────┘
       │                     │   ▲
       │             GIVE_UP ▼   │ START
       │                   GIVEN_UP
       │ REAPED
    STOPPING ◀── STOP, from every state that has or awaits a process (from GIVEN_UP: straight to STOPPED)

A stop that was asked for never passes through BACKOFF, so an intended end is never reported as a failure.
START leads out of GIVEN_UP through BACKOFF, because the limit on the rate of starts still holds.

The states are in `backends/state.py`, because the state of a backend follows from the state of its process.

    Exception
    ├── LlamaStartError            a llama-server gave up, was stopped, or took too long to become ready
    └── IllegalTransitionError     an event without meaning in the state: a fault of this program

This module never awaits and holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from slotgate.gateway.backends.state import ProcessState
from slotgate.gateway.processes.failure import ProcessFailure

__all__ = [
    "TRANSITIONS",
    "IllegalTransitionError",
    "LlamaStartError",
    "ProcessEvent",
    "ProcessState",
    "next_state",
]


class ProcessEvent(Enum):
    """An event in the life of a llama-server process."""

    START = "start"
    SPAWNED = "spawned"
    ANSWERED = "answered"
    ENDED = "ended"
    RETRY = "retry"
    GIVE_UP = "give_up"
    STOP = "stop"
    REAPED = "reaped"


TRANSITIONS: Final[Mapping[ProcessState, Mapping[ProcessEvent, ProcessState]]] = {
    ProcessState.STOPPED: {ProcessEvent.START: ProcessState.STARTING},
    ProcessState.STARTING: {
        ProcessEvent.SPAWNED: ProcessState.LOADING,
        ProcessEvent.ENDED: ProcessState.BACKOFF,
        ProcessEvent.STOP: ProcessState.STOPPING,
    },
    ProcessState.LOADING: {
        ProcessEvent.ANSWERED: ProcessState.READY,
        ProcessEvent.ENDED: ProcessState.BACKOFF,
        ProcessEvent.STOP: ProcessState.STOPPING,
    },
    ProcessState.READY: {
        ProcessEvent.ENDED: ProcessState.BACKOFF,
        ProcessEvent.STOP: ProcessState.STOPPING,
    },
    ProcessState.BACKOFF: {
        ProcessEvent.RETRY: ProcessState.STARTING,
        ProcessEvent.GIVE_UP: ProcessState.GIVEN_UP,
        ProcessEvent.STOP: ProcessState.STOPPING,
    },
    ProcessState.GIVEN_UP: {
        ProcessEvent.START: ProcessState.BACKOFF,
        ProcessEvent.STOP: ProcessState.STOPPED,
    },
    ProcessState.STOPPING: {ProcessEvent.REAPED: ProcessState.STOPPED},
}


class IllegalTransitionError(RuntimeError):
    """An event that has no meaning in the state: a fault of this program, never of a llama-server."""


def next_state(state: ProcessState, event: ProcessEvent) -> ProcessState:
    """Return the state that `event` leads to. Raises IllegalTransitionError if there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError as error:
        raise IllegalTransitionError(f"{event.name} while {state.name}") from error


class LlamaStartError(Exception):
    """The llama-server that the caller waits for will not become ready now; the message says why."""

    def __init__(self, message: str, failure: ProcessFailure | None = None) -> None:
        super().__init__(message if failure is None else f"{message}: {failure}")
        self.failure = failure
