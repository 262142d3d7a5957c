"""The life of a backend as the gateway sees it, and what may follow what.

    STOPPED ──▶ STARTING ──▶ LOADING ──▶ READY ◀──▶ BUSY
       ▲            ▲           ▲          ▲          (from each of these: DRAINING and back)
       │            └───────────┴── FAILED ┘
       └── from everywhere: its process is not loaded any more

READY admits, and nothing else does. BUSY does not answer when asked for its health, but its streams deliver:
its leases go on. It gets no new ones, because a request that is sent where nobody answers would wait where
nobody sees it; in the queue it keeps its place and its keep-alives, may go elsewhere, and is granted as soon
as health is answered.

This module never awaits and holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["NEXT", "BackendState"]


class BackendState(Enum):
    STARTING = "starting"
    """Not asked yet, or its process does not listen yet."""
    LOADING = "loading"
    """It answers that it loads its model."""
    READY = "ready"
    BUSY = "busy-unreachable"
    DRAINING = "draining"
    """It gets no new work; what runs goes on."""
    FAILED = "failed"
    """A backend that is not there or does not answer, or a process that was given up."""
    STOPPED = "stopped"
    """Its process is not loaded: nobody needs it now, or by order."""

    @property
    def is_coming(self) -> bool:
        return self in {BackendState.STARTING, BackendState.LOADING}


_ANY_TIME = {BackendState.FAILED, BackendState.DRAINING, BackendState.STOPPED}
NEXT: Final[Mapping[BackendState, frozenset[BackendState]]] = {
    BackendState.STARTING: frozenset({BackendState.LOADING, BackendState.READY} | _ANY_TIME),
    BackendState.LOADING: frozenset({BackendState.STARTING, BackendState.READY} | _ANY_TIME),
    BackendState.READY: frozenset(set(BackendState) - {BackendState.READY}),
    BackendState.BUSY: frozenset(set(BackendState) - {BackendState.BUSY}),
    BackendState.DRAINING: frozenset(set(BackendState) - {BackendState.DRAINING}),
    BackendState.FAILED: frozenset(set(BackendState) - {BackendState.FAILED, BackendState.BUSY}),
    BackendState.STOPPED: frozenset({BackendState.STARTING, BackendState.FAILED}),
}
