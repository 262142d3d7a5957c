"""A lease: the right to `width` slots of one backend, until it is released.

A lease has three states and never goes back:

    GRANTED --start()--> STARTED --release()--> RELEASED
       \\-------------------release()--------------^

`start()` is called when the upstream's response headers come: from then on the backend is known to have taken
a slot for the request. `release()` states how the work ended, because this decides if the slot is idle or
must be verified. It never awaits, and only the first call has an effect, so it can stand at the earliest
right moment *and* in a `finally`.

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
    """The end of a lease, as far as its slots are concerned."""

    FINISHED = "finished"
    """The upstream completed its message, so its slots are idle."""
    REFUSED = "refused"
    """The upstream completed an error response: it took no slot, or the slot is idle again."""
    UNUSED = "unused"
    """The request did not reach the upstream. The slots were not used, and the tenant is not charged."""
    ABANDONED = "abandoned"
    """Any other end. The backend may still be busy, so its slots must be verified before reuse."""

    @property
    def verified(self) -> bool:
        """True if the slots are known to be idle at the release."""
        return self is not Outcome.ABANDONED


class Lease:
    """A lease. The scheduler makes one for every granted ticket."""

    __slots__ = (
        "_clock",
        "_on_forgiven",
        "_on_idle",
        "_on_release",
        "answer_limit",
        "delivered",
        "demand",
        "expected_s",
        "granted_at",
        "growth",
        "likely_tokens",
        "most_tokens",
        "outcome",
        "pool_name",
        "slots",
        "started_at",
        "state",
        "tokens",
        "used_tokens",
        "width",
    )

    def __init__(
        self,
        demand: Demand,
        *,
        pool_name: str,
        clock: Callable[[], float],
        on_release: Callable[[Lease], None],
        on_idle: Callable[[int], None] = lambda _: None,
        on_forgiven: Callable[[], None] = lambda: None,
        width: int | None = None,
        expected_s: float = 0.0,
    ) -> None:
        """`width` is given if it differs from the demand's.

        `on_idle` is called with a number of slots when they have left the quarantine. `on_forgiven` is called
        when its tenant is not to pay for it.
        """
        self.demand = demand
        self.pool_name = pool_name
        self.width = demand.width if width is None else width
        """The number of slots that it holds: the demand's width, or all slots if the pool requires it."""
        self.slots: tuple[int, ...] = ()
        """The ids of its slots; empty if the pool does not number them."""
        self.tokens = 0
        """The tokens of a shared context that it is expected to need; 0 if the pool has none."""
        self.likely_tokens = 0
        """The same as it was at the grant."""
        self.most_tokens = 0
        """The tokens of a shared context that it may need."""
        self.used_tokens = 0
        """The tokens of a shared context that it is known to have used so far."""
        self.growth = 0
        """The tokens by which that has grown between the last two looks at it."""
        self.answer_limit: int | None = None
        """The token limit to set for each of its answers. None: the answers have a limit already, or the
        lease has the whole context."""
        self.granted_at = clock()
        self.expected_s = expected_s
        """The seconds that it was guessed to take when it was granted."""
        self.started_at: float | None = None
        self.delivered = False
        """True once the upstream has sent an event of this request. It then notices a closed connection at
        its next write, and not only at its check every second."""
        self.outcome: Outcome | None = None
        self.state = LeaseState.GRANTED
        self._clock = clock
        self._on_idle = on_idle
        self._on_forgiven = on_forgiven
        self._on_release = on_release

    def __repr__(self) -> str:
        ended = f" {self.outcome.value}" if self.outcome else ""
        return f"<Lease {self.pool_name} x{self.width} {self.demand.tenant} {self.state.value}{ended}>"

    @property
    def live(self) -> bool:
        return self.state is not LeaseState.RELEASED

    def start(self) -> None:
        """Note that the upstream's response headers have come. Has no effect unless the lease is GRANTED."""
        if self.state is LeaseState.GRANTED:
            self.state = LeaseState.STARTED
            self.started_at = self._clock()

    def take_tokens(self, likely: int, most: int) -> None:
        """Take so many tokens of a shared context at the grant."""
        self.tokens = self.likely_tokens = likely
        self.most_tokens = most

    def grown(self, tokens: int) -> None:
        """Note the tokens of a shared context that it has used. Beyond its likely need it may need most."""
        self.growth = max(0, tokens - self.used_tokens) if self.used_tokens else 0
        self.used_tokens = max(self.used_tokens, tokens)
        if self.used_tokens > self.tokens:
            self.tokens = max(self.most_tokens, self.used_tokens)

    def slots_idle(self, slots: int) -> None:
        """Note that so many of its quarantined slots are idle again."""
        self._on_idle(slots)

    def forgive(self) -> None:
        """Take its slot time back from its tenant's account, because the backend died under it."""
        self._on_forgiven()

    def release(self, outcome: Outcome) -> None:
        """Give the slots back. Only the first call has an effect."""
        if self.state is LeaseState.RELEASED:
            return
        self.state = LeaseState.RELEASED
        self.outcome = outcome
        self._on_release(self)
