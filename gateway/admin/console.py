"""The parts of a gateway that serve operators. They live as long as the process, also across reloads."""

from __future__ import annotations

from dataclasses import dataclass

from slotgate.gateway.admin.live_status import LiveStatus
from slotgate.gateway.admin.page_files import PageFiles
from slotgate.gateway.auth.operators import Operators

__all__ = ["Console"]


@dataclass(frozen=True, slots=True)
class Console:
    """The parts that the operators' endpoints use."""

    operators: Operators
    """Checks keys and sessions."""
    live_status: LiveStatus
    """The snapshots behind `/admin/events`."""
    pages: PageFiles
    """The files of the dashboard and the playground."""
