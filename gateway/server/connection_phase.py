"""The phases of a client connection, whose order is drawn in `connection.py`."""

from __future__ import annotations

from enum import Enum

__all__ = ["ConnectionPhase"]


class ConnectionPhase(Enum):
    IDLE = "idle"
    HEAD = "head"
    ANSWERING = "answering"
    LAST = "last"
    DISCARDING = "discarding"
    LEAVING = "leaving"
