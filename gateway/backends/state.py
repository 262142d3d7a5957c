"""The lifecycle of a backend: one state, computed from all facts about the backend.

`BackendFacts` holds the facts: the state of its process (if the gateway runs it), the last health check, two
holds, and the circuit breaker. `backend_state` is the only function that turns facts into a state. Other code
asks the state only, for example if it admits, is coming or is gone.

    state         shown as           meaning
    STARTING      starting           it was not asked yet, or its process does not listen yet
    LOADING       loading            it says that it loads its model, or its new process was not asked yet
    READY         ready              it answers, and is given work
    BUSY          busy-unreachable   it misses health checks, but its streams deliver
    DRAINED       draining           an operator drained it; running requests go on, none waits for it
    LEAVING       draining           its process will be stopped when its last request has ended
    STOPPING      draining           its process was told to end; requests wait until it is back
    UNREACHABLE   failed             it misses health checks
    SILENT        failed             its circuit breaker is open: requests got no event in time
    GIVEN_UP      failed             its process failed too often and is not started again by itself
    UNLOADED      stopped            its process is not loaded and is loaded again when it is needed
    STOPPED       stopped            its process is not loaded and stays so until an operator acts

Only READY admits. A BUSY backend gets no new requests, because a request that is sent to it would wait
unseen. In the queue the request keeps its place and its keep-alives and may go to another backend. It is
granted as soon as the health check is answered.

`TRANSITIONS` allows the transitions that a change of one fact can cause, and nothing else: a loaded process
does not become unloaded without STOPPING, and a stopped one starts before it is ready. A test derives the
table from the facts. A forbidden transition is a fault of this program. `Backend` logs it and goes on with
the new state, because the facts are true whatever the table says; in the tests it is a failure.

This module never awaits and holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from slotgate.gateway.backends.circuit_breaker import CircuitState

__all__ = [
    "PROCESS_REASONS",
    "TRANSITIONS",
    "BackendFacts",
    "BackendState",
    "IllegalBackendTransitionError",
    "LastHealth",
    "ProcessState",
    "backend_state",
    "check_transition",
    "with_process",
]


class ProcessState(Enum):
    """The state of a llama-server that the gateway runs (`processes/state.py` has its transitions)."""

    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    BACKOFF = "backoff"
    GIVEN_UP = "given_up"
    STOPPING = "stopping"

    @property
    def may_become_ready(self) -> bool:
        """Return True if the process can become ready without another `start()`."""
        return self in {
            ProcessState.STARTING,
            ProcessState.LOADING,
            ProcessState.READY,
            ProcessState.BACKOFF,
        }


PROCESS_REASONS: Final[Mapping[ProcessState, str]] = {
    ProcessState.STARTING: "its process starts",
    ProcessState.BACKOFF: "its process starts",
    ProcessState.LOADING: "loading its model",
    ProcessState.STOPPED: "not loaded",
    ProcessState.STOPPING: "",
    ProcessState.GIVEN_UP: "",
}
"""Process state -> the reason that clients and operators read. A READY process is asked for its health."""


class LastHealth(Enum):
    """The result of the last health check."""

    NOT_ASKED = "not asked"
    LOADING = "loading"
    GOOD = "good"
    STREAMING = "missed, but its streams deliver"
    MISSED = "missed"


class BackendState(Enum):
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    BUSY = "busy-unreachable"
    DRAINED = "drained"
    LEAVING = "leaving"
    STOPPING = "stopping"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    GIVEN_UP = "given-up"
    UNLOADED = "unloaded"
    STOPPED = "stopped"

    @property
    def label(self) -> str:
        """The name that status pages, metrics and logs show. Several states share one name."""
        return _LABELS.get(self, self.value)

    @property
    def is_coming(self) -> bool:
        """Return True while the backend starts or loads. Requests that wait for it do not time out."""
        return self in {BackendState.STARTING, BackendState.LOADING}

    @property
    def is_up(self) -> bool:
        """Return True if the backend is known to work: its model is loaded and its requests go on."""
        return self in {BackendState.READY, BackendState.BUSY}

    @property
    def is_failed(self) -> bool:
        """Return True if the backend does not work. Requests wait for it for a limited time."""
        return self in {BackendState.UNREACHABLE, BackendState.SILENT, BackendState.GIVEN_UP}

    @property
    def is_gone(self) -> bool:
        """Return True if the backend does not come back by itself. Requests that wait for it are refused."""
        return self in {BackendState.DRAINED, BackendState.GIVEN_UP, BackendState.STOPPED}

    @property
    def may_become_ready(self) -> bool:
        """Return True if the backend is not ready, has not failed and is not gone."""
        return not (self is BackendState.READY or self.is_failed or self.is_gone)


_LABELS: Final[Mapping[BackendState, str]] = {
    BackendState.DRAINED: "draining",
    BackendState.LEAVING: "draining",
    BackendState.STOPPING: "draining",
    BackendState.UNREACHABLE: "failed",
    BackendState.SILENT: "failed",
    BackendState.GIVEN_UP: "failed",
    BackendState.UNLOADED: "stopped",
}


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """The facts on which the state of a backend depends."""

    process: ProcessState | None = None
    """The state of its process; None for a llama-server that the gateway does not run."""
    health: LastHealth = LastHealth.NOT_ASKED
    drained: bool = False
    """True if an operator has drained it, so that it gets no new requests."""
    leaving: bool = False
    """True if its process is about to be stopped, so that it gets no new requests."""
    may_load: bool = True
    """True if a stopped process is started again without an operator."""
    circuit: CircuitState = CircuitState.CLOSED

    @property
    def can_be_asked(self) -> bool:
        """Return True if health checks make sense. A process of the gateway is asked once it is READY."""
        return self.process in (None, ProcessState.READY)

    @property
    def loads(self) -> bool:
        """Return True while the process or its model starts, whatever the holds or the circuit say."""
        match self.process:
            case ProcessState.STARTING | ProcessState.LOADING | ProcessState.BACKOFF:
                return True
            case None | ProcessState.READY:
                return self.health in (LastHealth.NOT_ASKED, LastHealth.LOADING)
            case _:
                return False


def backend_state(facts: BackendFacts) -> BackendState:
    """Return the state that follows from the facts."""
    return _state_without_service(facts) or _state_of_service(facts)


def _state_without_service(facts: BackendFacts) -> BackendState | None:
    """Return the state if the process does not serve, or if no new requests are allowed; else None."""
    if facts.process is ProcessState.STOPPED:
        comes_back = facts.may_load and not facts.drained
        return BackendState.UNLOADED if comes_back else BackendState.STOPPED
    if facts.drained:
        return BackendState.DRAINED
    if facts.process in _ENDING:
        return _ENDING[facts.process]
    if facts.leaving:
        return BackendState.LEAVING
    return _COMING.get(facts.process)


def _state_of_service(facts: BackendFacts) -> BackendState:
    if facts.circuit is CircuitState.OPEN:
        return BackendState.SILENT
    if facts.health is LastHealth.NOT_ASKED and facts.process is ProcessState.READY:
        return BackendState.LOADING  # the process was LOADING a moment ago
    return _BY_HEALTH[facts.health]


_ENDING: Final[Mapping[ProcessState | None, BackendState]] = {
    ProcessState.GIVEN_UP: BackendState.GIVEN_UP,
    ProcessState.STOPPING: BackendState.STOPPING,
}
_COMING: Final[Mapping[ProcessState | None, BackendState]] = {
    ProcessState.STARTING: BackendState.STARTING,
    ProcessState.BACKOFF: BackendState.STARTING,
    ProcessState.LOADING: BackendState.LOADING,
}
_BY_HEALTH: Final[Mapping[LastHealth, BackendState]] = {
    LastHealth.NOT_ASKED: BackendState.STARTING,
    LastHealth.LOADING: BackendState.LOADING,
    LastHealth.GOOD: BackendState.READY,
    LastHealth.STREAMING: BackendState.BUSY,
    LastHealth.MISSED: BackendState.UNREACHABLE,
}


def with_process(facts: BackendFacts, process: ProcessState) -> BackendFacts:
    """Return the facts after a change of the process.

    The last health check and the timeouts of the old process say nothing about a new one. A process that has
    ended needs no stop any more.
    """
    circuit = CircuitState.CLOSED if process is ProcessState.READY else facts.circuit
    leaving = facts.leaving and process is ProcessState.STOPPING
    return replace(facts, process=process, health=LastHealth.NOT_ASKED, circuit=circuit, leaving=leaving)


def _these(*states: BackendState) -> frozenset[BackendState]:
    return frozenset(states)


_FAILS: Final = _these(BackendState.UNREACHABLE, BackendState.SILENT)
_HOLDS: Final = _these(BackendState.DRAINED, BackendState.LEAVING, BackendState.STOPPING)
_IS_UP: Final = _these(BackendState.READY, BackendState.BUSY)
_COMES: Final = _these(BackendState.STARTING, BackendState.LOADING)
_ENDED: Final = _these(BackendState.UNLOADED, BackendState.STOPPED)

TRANSITIONS: Final[Mapping[BackendState, frozenset[BackendState]]] = {
    BackendState.STARTING: _these(BackendState.LOADING, BackendState.READY, BackendState.GIVEN_UP)
    | _FAILS
    | _HOLDS,
    BackendState.LOADING: _these(BackendState.STARTING, BackendState.READY) | _FAILS | _HOLDS,
    BackendState.READY: _these(BackendState.BUSY) | _COMES | _FAILS | _HOLDS,
    BackendState.BUSY: _these(BackendState.READY) | _COMES | _FAILS | _HOLDS,
    BackendState.DRAINED: _these(
        BackendState.LEAVING, BackendState.STOPPING, BackendState.GIVEN_UP, BackendState.STOPPED
    )
    | _IS_UP
    | _COMES
    | _FAILS,
    BackendState.LEAVING: _these(BackendState.DRAINED, BackendState.STOPPING, BackendState.GIVEN_UP)
    | _IS_UP
    | _COMES
    | _FAILS,
    BackendState.STOPPING: _these(BackendState.DRAINED) | _ENDED,
    BackendState.UNREACHABLE: _these(BackendState.READY, BackendState.SILENT) | _COMES | _HOLDS,
    BackendState.SILENT: _these(BackendState.UNREACHABLE) | _IS_UP | _COMES | _HOLDS,
    BackendState.GIVEN_UP: _these(BackendState.STARTING, BackendState.DRAINED) | _ENDED,
    BackendState.UNLOADED: _these(BackendState.STARTING, BackendState.STOPPED),
    BackendState.STOPPED: _these(BackendState.STARTING, BackendState.DRAINED, BackendState.UNLOADED),
}
"""State -> the states that may follow it."""


class IllegalBackendTransitionError(RuntimeError):
    """A transition that `TRANSITIONS` forbids: a fault of this program, not of a llama-server."""


def check_transition(before: BackendState, after: BackendState) -> None:
    """Raise `IllegalBackendTransitionError` if a backend cannot go from `before` to `after`."""
    if after is not before and after not in TRANSITIONS[before]:
        raise IllegalBackendTransitionError(f"{before.name} cannot become {after.name}")
