"""The receiver of a response from a backend, and the ways in which an exchange ends."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

__all__ = ["End", "Headers", "Sink"]

Headers = list[tuple[bytes, bytes]]


class End(Enum):
    """The way an exchange ended, as seen on the wire."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    """The connection closed before the message was complete."""
    BROKEN = "broken"
    """The response was not HTTP, or had an encoding that was not asked for."""
    CLOSED = "closed"
    """The gateway closed the connection."""
    UNREACHABLE = "unreachable"
    """No connection could be made, and nothing was sent."""


class Sink(Protocol):
    """The receiver of a response. The event loop calls it, so its methods must not block or raise."""

    def head(self, status: int, headers: Headers) -> None:
        """Take status and headers (names in lower case)."""

    def body(self, data: bytes) -> None:
        """Take bytes of the body as they were read, without chunk framing."""

    def read_over(self) -> Callable[[bytes], bool] | None:
        """Note that everything of one read has been pushed. More reads may follow.

        Returns an optional fast path. It receives each raw read that starts at a chunk boundary, before the
        parser does, and returns True if it consumed the read. It is dropped at the first read that it does
        not consume.
        """

    def ended(self, end: End) -> None:
        """Note that the exchange is over. No other call follows."""
