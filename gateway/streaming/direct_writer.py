"""What the fast path and the downstream buffer need of the server's chunk writer.

`gateway/server/chunk_writer.py` implements it. Declaring it here keeps streaming free of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["DirectWriter"]


class DirectWriter(Protocol):
    now: Callable[[bytes], None] | None
    """Writes one chunk, size line included. None while a direct write could overtake other bytes."""

    def piece(self, piece: bytes) -> bool: ...
    def open(self) -> None: ...
    def shut(self) -> None: ...
