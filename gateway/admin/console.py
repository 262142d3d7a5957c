"""The operators' side of a gateway. It lives as long as the process, also across reloads."""

from __future__ import annotations

from dataclasses import dataclass

from slotgate.gateway.admin.live_status import LiveStatus
from slotgate.gateway.admin.page_files import Pages
from slotgate.gateway.auth.operators import Operators

__all__ = ["Console"]


@dataclass(frozen=True, slots=True)
class Console:
    operators: Operators
    """Decides who is let in."""
    live_status: LiveStatus
    pages: Pages
    """The files of the dashboard and the playground."""
