"""A lease: the right to `width` slots of one backend, until it is released.

The life of a lease is three states and never goes back:

    GRANTED --start()--> STARTED --release()--> RELEASED
       \\-------------------release()--------------^

`start()` is called when the upstream's response headers come: from then on the backend is known to
have taken a slot for it. `release()` states how the work ended, because that decides what becomes
of the slot. It is synchronous, never awaits, and only the first call counts, so that it can stand at
the earliest right moment *and* in a `finally`.

`settle_cost()` may come before or after the release: what the work cost in truth is often known later.

This module never awaits and knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from slotgate.admission.demand import Demand

__all__ = ["Lease", "LeaseState", "Outcome"]


class LeaseState(Enum):
    GRANTED = "granted"
    STARTED = "started"
    RELEASED = "released"


class Outcome(Enum):
    """How a lease ended, as far as its slots are concerned."""

    FINISHED = "finished"
    """The upstream completed its message by itself: its slots are idle."""
    REFUSED = "refused"
    """A complete answer that was no success: no slot was taken, or it is over."""
    UNUSED = "unused"
    """Nothing ever reached the upstream: its slots were never touched, and its tenant is not charged."""
    ABANDONED = "abandoned"
    """Anything else. The backend may still be busy: its slots must be verified before reuse."""

    @property
    def verified(self) -> bool:
        """Whether the slots are known to be idle at the moment of release."""
        return self is not Outcome.ABANDONED


class Lease:
    """Made by the scheduler only; one a granted ticket."""

    __slots__ = (
        "_clock",
        "_on_cost",
        "_on_release",
        "answer_limit",
        "delivered",
        "demand",
        "granted_at",
        "outcome",
        "pool_name",
        "slots",
        "started_at",
        "state",
        "tokens",
        "width",
    )

    def __init__(
        self,
        demand: Demand,
        *,
        pool_name: str,
        clock: Callable[[], float],
        on_cost: Callable[[float], None],
        on_release: Callable[[Lease], None],
        width: int | None = None,
    ) -> None:
        """`width` where it is not what the demand asks for."""
        self.demand = demand
        self.pool_name = pool_name
        self.width = demand.width if width is None else width
        """How many slots it holds: what the demand asks for, or more where its pool says so."""
        self.slots: tuple[int, ...] = ()
        """Their numbers, where its pool numbers them."""
        self.tokens = 0
        """Its part of the context, where the slots of its pool share one."""
        self.answer_limit: int | None = None
        """To how many tokens each of its answers is to be limited, if they have no limit of their own."""
        self.granted_at = clock()
        self.started_at: float | None = None
        self.delivered = False
        """Whether the upstream has sent an event of this request: it then notices a closed
        connection at its next write, and not only at its one-second check."""
        self.outcome: Outcome | None = None
        self.state = LeaseState.GRANTED
        self._clock = clock
        self._on_cost = on_cost
        self._on_release = on_release

    def __repr__(self) -> str:
        ended = f" {self.outcome.value}" if self.outcome else ""
        return f"<Lease {self.pool_name} x{self.width} {self.demand.tenant} {self.state.value}{ended}>"

    @property
    def live(self) -> bool:
        return self.state is not LeaseState.RELEASED

    def start(self) -> None:
        """The upstream's response headers are here. Without effect unless the lease is GRANTED."""
        if self.state is LeaseState.GRANTED:
            self.state = LeaseState.STARTED
            self.started_at = self._clock()

    def settle_cost(self, cost: float) -> None:
        """What the work cost in truth, in tokens. May be called again; the last call counts."""
        self._on_cost(cost)

    def release(self, outcome: Outcome) -> None:
        """Give the slots back. Only the first call has an effect."""
        if self.state is LeaseState.RELEASED:
            return
        self.state = LeaseState.RELEASED
        self.outcome = outcome
        self._on_release(self)
