"""A ticket: a place in the queue.

    QUEUED --> GRANTED      a lease stands in `lease`
       \\----> WITHDRAWN    by its owner, or by the queue (`refusal` says why)

A ticket is settled exactly once; `on_settled` is then called, synchronously, from within whatever
call settled it. It must not raise, must not await and should do no more than wake its owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from admission.errors import Refusal
from admission.lease import Lease

__all__ = ["Demand", "Priority", "Ticket", "TicketState"]


class Priority(IntEnum):
    """Lower goes first. Ageing keeps BATCH from starving."""

    INTERACTIVE = 0
    BATCH = 1


class TicketState(Enum):
    QUEUED = "queued"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of admission."""

    tenant: str
    model: str
    width: int = 1
    """Slots needed at once."""
    cost: float = 1.0
    """Estimated work in tokens: what the tenant's share is charged with."""
    priority: Priority = Priority.INTERACTIVE
    body_bytes: int = 0
    """Size of the body that waits with the ticket."""


class Ticket:
    __slots__ = (
        "arrival_tag",
        "charged",
        "demand",
        "enqueued_at",
        "lease",
        "on_settled",
        "refusal",
        "seq",
        "state",
    )

    def __init__(
        self, demand: Demand, *, seq: int, enqueued_at: float, on_settled: Callable[[], None]
    ) -> None:
        self.demand = demand
        self.seq = seq
        self.enqueued_at = enqueued_at
        self.on_settled = on_settled
        self.state = TicketState.QUEUED
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None
        self.arrival_tag = 0.0
        """Virtual time when the ticket came (see `admission.fair`)."""
        self.charged = 0.0
        """What the tenant's clock was advanced by for this ticket."""

    def __repr__(self) -> str:
        demand = self.demand
        return f"<Ticket #{self.seq} {demand.tenant}/{demand.model} x{demand.width} {self.state.value}>"

    @property
    def queued(self) -> bool:
        return self.state is TicketState.QUEUED

    def grant(self, lease: Lease) -> None:
        self.state = TicketState.GRANTED
        self.lease = lease
        self.on_settled()

    def withdraw(self, refusal: Refusal | None) -> None:
        """Leave the queue: with a refusal when the queue ends the wait, without when the owner does."""
        self.state = TicketState.WITHDRAWN
        self.refusal = refusal
        self.on_settled()
