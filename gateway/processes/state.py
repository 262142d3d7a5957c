"""The life of a llama-server of ours: its states and the events that lead from one to the next.

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

A stop that was asked for never passes through BACKOFF, so an intended end is never told as a failure.
GIVEN_UP is not for ever: START leads out of it, through BACKOFF, where the limit on starts is kept.

This module never awaits and holds no state.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """Where a llama-server of ours is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    BACKOFF = "backoff"
    GIVEN_UP = "given_up"
    STOPPING = "stopping"

    @property
    def may_become_ready(self) -> bool:
        """Whether waiting for READY makes sense without another `start()`."""
        return self in {State.STARTING, State.LOADING, State.READY, State.BACKOFF}


class Event(Enum):
    """What can happen to it."""

    START = "start"
    SPAWNED = "spawned"
    ANSWERED = "answered"
    ENDED = "ended"
    RETRY = "retry"
    GIVE_UP = "give_up"
    STOP = "stop"
    REAPED = "reaped"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.STOPPED: {Event.START: State.STARTING},
    State.STARTING: {Event.SPAWNED: State.LOADING, Event.ENDED: State.BACKOFF, Event.STOP: State.STOPPING},
    State.LOADING: {Event.ANSWERED: State.READY, Event.ENDED: State.BACKOFF, Event.STOP: State.STOPPING},
    State.READY: {Event.ENDED: State.BACKOFF, Event.STOP: State.STOPPING},
    State.BACKOFF: {Event.RETRY: State.STARTING, Event.GIVE_UP: State.GIVEN_UP, Event.STOP: State.STOPPING},
    State.GIVEN_UP: {Event.START: State.BACKOFF, Event.STOP: State.STOPPED},
    State.STOPPING: {Event.REAPED: State.STOPPED},
}


class IllegalTransitionError(RuntimeError):
    """An event that has no meaning in the state: a fault of the program, never of a llama-server."""


def next_state(state: State, event: Event) -> State:
    """The state that `event` leads to. Raises IllegalTransitionError where there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError as error:
        raise IllegalTransitionError(f"{event.name} while {state.name}") from error
