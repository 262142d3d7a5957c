"""The part of the server's chunk writer that a stream uses.

`gateway/server/chunk_writer.py` implements it. Declaring it here keeps streaming free of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["DirectWriter"]


class DirectWriter(Protocol):
    now: Callable[[bytes], None] | None
    """Writes one chunk, size line included. None while a direct write could overtake other bytes."""

    def piece(self, piece: bytes) -> bool:
        """Write a piece of the body at once and return True, or return False if only `send` can."""

    def open(self) -> None:
        """Allow direct writes, because everything that was put has been sent."""

    def shut(self) -> None:
        """Forbid direct writes."""
