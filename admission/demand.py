"""A demand: the slots that a request needs, and the facts by which admission chooses slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["Demand", "Priority", "RequestInPieces"]


class Priority(IntEnum):
    """The priority class. Interactive tickets go first, but not always; see `admission.fair_order`."""

    INTERACTIVE = 0
    BATCH = 1


@dataclass(slots=True, eq=False)
class RequestInPieces:
    """A request that is asked in pieces, each with a ticket of its own. Its owner keeps it up to date."""

    pieces: int = 0
    """The pieces that wait or run, or are about to queue."""
    begun: bool = False
    """True once a piece has been sent to a backend."""


@dataclass(frozen=True, slots=True)
class Demand:
    tenant: str
    model: str
    width: int = 1
    """Slots needed at once, at least 1."""
    cost: float = 1.0
    """Estimated work in tokens, for the limits of a tenant. The fair order counts slot time instead."""
    priority: Priority = Priority.INTERACTIVE
    body_bytes: int = 0
    """Size of the body that waits with the ticket."""

    endpoint: str = ""
    """The path of the request. Requests of one tenant, endpoint and model probably take the same time."""
    tokens: int = 0
    """Tokens of the context that prompt and answer need; 0 if no pool of the model shares a context."""
    likely_tokens: int | None = None
    """The same with an answer as long as earlier ones; None if that is not known."""
    open_ended: bool = False
    """True if the answer has no limit. Then `tokens` is the prompt alone, and the pool sets a limit."""
    warm_slots: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Pool name -> id of the slot that probably holds this prompt's prefix (numbered pools only)."""
    numbered: bool = True
    """True if the request can tell the backend which slot to use."""
    isolated: bool = False
    """True if nothing of the request may be left in a slot when another request gets the slot."""
    warmth: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Pool name -> bytes of the prompt that its backend probably has in its cache."""

    request: RequestInPieces | None = field(default=None, hash=False)
    """The request that this is a piece of; None: it is a request of its own."""

    @property
    def has_begun(self) -> bool:
        """True for a piece of a request that has begun."""
        return self.request is not None and self.request.begun

    @property
    def keeps_place(self) -> bool:
        """True for the only piece of a request that has begun. The request was inside all the time."""
        return self.request is not None and self.request.begun and self.request.pieces == 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a width of {self.width} asks for nothing")
