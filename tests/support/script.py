"""The steps of the scripts of a scripted upstream, as plain values.

A script is a sequence of steps. After its last step the connection stays open for a next request
(keep-alive) unless a step closed it. A script is cancelled the moment its client closes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.notation import END, H, chunked, numbered_event


@dataclass(frozen=True, slots=True)
class Write:
    """Write `data`, and go on when the socket's buffer is below its mark again."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. `Sleep(0)` is one turn of the event loop."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gate:
    """Go on when the test sets `event`."""

    event: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class AwaitByte:
    """Go on when the client sends anything beyond the request being answered."""


@dataclass(frozen=True, slots=True)
class Paced:
    """Write `count` events (None: for ever) at `rate` a second, each as one HTTP chunk, at absolute times.

    `ReceivedRequest.frame_ns[index]` has the time of each. `rate=inf` writes as fast as the client reads.
    """

    rate: float
    count: int | None = None
    frame: Callable[[int], bytes] = numbered_event


@dataclass(frozen=True, slots=True)
class Flood:
    """Write at least `total_bytes` of events, many to a chunk, as fast as the client reads."""

    total_bytes: int
    frame: bytes = field(default_factory=lambda: numbered_event(0))


@dataclass(frozen=True, slots=True)
class Fin:
    """Shut down the sending half. The connection counts as open until the client closes its half."""


@dataclass(frozen=True, slots=True)
class Rst:
    """Reset the connection. Bytes that were not delivered yet are lost."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Wait for ever."""


Step = Write | Sleep | Gate | AwaitByte | Paced | Flood | Fin | Rst | Stall
Script = Sequence[Step]


def stream(*events: bytes) -> Script:
    """Return a whole stream as llama-server sends it: head, one chunk an event, final chunk, FIN."""
    return [Write(H), *(Write(chunked(event)) for event in events), Write(END), Fin()]


def cut(data: bytes, *offsets: int, gap_s: float = 0.0) -> Script:
    """Return writes of `data` that end at `offsets`, with a pause between, so that each is read by itself.

    A gap of 0 (one loop turn) is enough for a reader on the same loop.
    """
    borders = [0, *sorted(offsets), len(data)]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(borders) if start < stop]
    return [step for piece in pieces for step in (Write(piece), Sleep(gap_s))]


def bytewise(data: bytes, gap_s: float = 0.0) -> Script:
    """Return writes of one byte each."""
    return cut(data, *range(1, len(data)), gap_s=gap_s)
