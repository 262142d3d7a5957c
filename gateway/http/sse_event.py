"""A server-sent event, or a piece of an event that is too large to hold."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["SseEvent", "SseKind"]


class SseKind(Enum):
    MESSAGE = "message"
    COMMENT = "comment"
    ERROR_FIELD = "error"
    PIECE = "piece"
    """A piece of the data of a large event. The event's `data` lines are joined with LF."""
    LAST = "last"
    """The end of a large event. It has no data."""


class SseEvent(NamedTuple):
    """An event, a comment or a piece."""

    data: bytes
    kind: SseKind = SseKind.MESSAGE
    name: bytes = b""
