"""One exchange as seen on the wire: a request as it is matched, and its response in reads with their times.

Plain values. Times are milliseconds from the moment at which the whole request had been sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = ["Ending", "RecordedExchange", "RecordedRead", "RecordedResponse"]

Headers = tuple[tuple[str, str], ...]


class Ending(Enum):
    """How a response ended."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    """The upstream closed the connection before the message was complete, or broke HTTP."""
    ABANDONED = "abandoned"
    """The client left, or recording was stopped; what had come until then is there."""


@dataclass(frozen=True, slots=True)
class RecordedRead:
    """What one read of the socket brought of the body, without chunk framing."""

    ms: float
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    status: int | None
    """None: the connection ended before a head had come."""
    head_ms: float
    headers: Headers
    """Those of the message, and `connection: close`; no other hop-by-hop ones, no date, no secrets."""
    reads: tuple[RecordedRead, ...]
    ending: Ending
    end_ms: float
    closes: bool
    """Whether the upstream closed the connection behind the response, or said that it would."""

    @property
    def body(self) -> bytes:
        return b"".join(read.data for read in self.reads)


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    request: RecordedRequest
    response: RecordedResponse
    name: str = ""
    """Of its file, without the folder."""
