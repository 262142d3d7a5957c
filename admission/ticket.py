"""A ticket: a place in the queue.

    QUEUED --> GRANTED      a lease stands in `lease`
       \\----> WITHDRAWN    by its owner, or by the queue (`refusal` says why)

A ticket is settled exactly once. `on_settled` is then called synchronously, by the call that settled it. It
must not raise, and should do no more than wake the ticket's owner.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from slotgate.admission.demand import Demand
from slotgate.admission.errors import Refusal
from slotgate.admission.lease import Lease

__all__ = ["Ticket", "TicketState"]


class TicketState(Enum):
    QUEUED = "queued"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"


class Ticket:
    __slots__ = (
        "counts_from",
        "demand",
        "enqueued_at",
        "guess",
        "lease",
        "on_settled",
        "patient_until",
        "refusal",
        "seq",
        "state",
    )

    def __init__(
        self, demand: Demand, *, seq: int, enqueued_at: float, on_settled: Callable[[], None]
    ) -> None:
        self.demand = demand
        self.seq = seq
        """The ticket's number in the order of arrival."""
        self.enqueued_at = enqueued_at
        self.counts_from = enqueued_at
        """The time of arrival by the clock of its model's queue, which stands still while the model loads."""
        self.guess = 0.0
        """The slot-seconds that the request will probably take."""
        self.on_settled = on_settled
        self.patient_until: float | None = None
        """The time until which the ticket declines cold slots; None before it was offered one."""
        self.state = TicketState.QUEUED
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None

    def __repr__(self) -> str:
        demand = self.demand
        return f"<Ticket #{self.seq} {demand.tenant}/{demand.model} x{demand.width} {self.state.value}>"

    @property
    def queued(self) -> bool:
        return self.state is TicketState.QUEUED

    def grant(self, lease: Lease) -> None:
        self._settle(TicketState.GRANTED)
        self.lease = lease
        self.on_settled()

    def withdraw(self, refusal: Refusal | None) -> None:
        """Settle the ticket without a lease. `refusal` is None if its owner left."""
        self._settle(TicketState.WITHDRAWN)
        self.refusal = refusal
        self.on_settled()

    def _settle(self, state: TicketState) -> None:
        if not self.queued:
            raise ValueError(f"{self!r} cannot become {state.value}: it is settled")
        self.state = state
