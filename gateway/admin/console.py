"""What operators have for as long as the process lives, whatever configuration it runs by at the moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Self

from slotgate.gateway.admin.live_status import LiveStatus
from slotgate.gateway.admin.orders import Orders
from slotgate.gateway.admin.page_files import Pages
from slotgate.gateway.auth.operators import Operators
from slotgate.gateway.backends.fleet import Fleet

__all__ = ["Console"]


@dataclass(frozen=True, slots=True)
class Console:
    operators: Operators
    """Who is let in."""
    board: LiveStatus
    """What they see."""
    pages: Pages
    """What they see it on."""

    @classmethod
    def of(cls, fleet: Fleet, orders: Orders | None = None) -> Self:
        """Nobody is let in yet."""
        return cls(Operators(None, asyncio.get_running_loop().time), LiveStatus(fleet, orders), Pages())
