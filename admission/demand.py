"""What a request asks of admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["Demand", "Priority"]


class Priority(IntEnum):
    """Lower goes first, but never always: see `admission.fair_order`."""

    INTERACTIVE = 0
    BATCH = 1


@dataclass(frozen=True, slots=True)
class Demand:
    tenant: str
    model: str
    width: int = 1
    """Slots needed at once, at least 1."""
    cost: float = 1.0
    """Estimated work in tokens: what the tenant's share is charged with."""
    priority: Priority = Priority.INTERACTIVE
    body_bytes: int = 0
    """Size of the body that waits with the ticket."""

    tokens: int = 0
    """Room in the context that prompt and answer need, where slots share one; 0: nobody has to know."""
    open_ended: bool = False
    """Whether the answer has no limit: then `tokens` is the prompt alone, and the pool sets a limit."""
    warm_slots: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By the names of pools: the number of the slot that did it, where slots have numbers."""
    numbered: bool = True
    """Whether the backend can be told in the request which of its slots to use."""
    isolated: bool = False
    """Whether nothing of it may be left in a slot that somebody else gets."""
    warmth: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By the names of pools: how much of the work each has probably done already, in bytes of the prompt."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a width of {self.width} asks for nothing")
