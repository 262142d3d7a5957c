"""The delivery of an answer: whether the client has taken all of it.

`send` returns when bytes are written, not when they have left. The server offers the extension
`slotgate.delivery`, which knows how much of the answer still waits, and gives up a client that takes nothing
for a while. An application without that extension (in a test, say) takes every answer for delivered.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from starlette.types import Scope

__all__ = ["Delivered", "Delivery", "delivery_of", "until_delivered"]


class Delivered(Enum):
    """The end of the delivery of an answer."""

    SENT = "sent"
    GONE = "gone"
    """The connection was lost with a part of the answer unsent."""
    STALLED = "stalled"
    """The client took nothing for too long, and its connection was closed."""


class Delivery(Protocol):
    stall_timeout_s: float
    """Seconds in which the client has to take something, while bytes wait for it."""

    @property
    def result(self) -> Delivered | None:
        """The end of the delivery, or None while it is under way."""

    async def over(self) -> Delivered:
        """Wait for the end of the delivery of a complete answer."""


def delivery_of(scope: Scope) -> Delivery | None:
    delivery: Delivery | None = scope.get("extensions", {}).get("slotgate.delivery")
    return delivery


async def until_delivered(scope: Scope) -> Delivered:
    """Wait until the answer, which is complete, has been delivered or given up."""
    delivery = delivery_of(scope)
    return Delivered.SENT if delivery is None else await delivery.over()
