"""The values of a recording: a request as it is compared, and its response in reads with their times.

Times are milliseconds from the moment at which the whole request had been sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = ["Ending", "RecordedExchange", "RecordedRead", "RecordedResponse"]

Headers = tuple[tuple[str, str], ...]


class Ending(Enum):
    """The way in which a response ended."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    """The upstream closed the connection before the message was complete, or broke HTTP."""
    ABANDONED = "abandoned"
    """The client left, or the recorder was stopped. The recording has the reads until then."""


@dataclass(frozen=True, slots=True)
class RecordedRead:
    """The part of the body that one read of the socket brought, without chunk framing."""

    ms: float
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """The response of an exchange."""

    status: int | None
    """The status, or None if the connection ended before a head came."""
    head_ms: float
    headers: Headers
    """The headers, `connection: close` included, without other hop-by-hop headers, date and secrets."""
    reads: tuple[RecordedRead, ...]
    ending: Ending
    end_ms: float
    closes: bool
    """True if the upstream closed the connection behind the response, or announced it."""

    @property
    def body(self) -> bytes:
        return b"".join(read.data for read in self.reads)


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A request and its response."""

    request: RecordedRequest
    response: RecordedResponse
    name: str = ""
    """The name of the file, without the folder."""
