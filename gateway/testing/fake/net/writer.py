"""What an answer is written to, and how a script has it damaged on the way.

A `Line` is the connection as an answer sees it. `Damage` stands between them and knows bytes only.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from slotgate.gateway.testing.fake.net.wire import chunked
from slotgate.gateway.testing.fake.script.scene import Fault, FaultKind

__all__ = ["Damage", "Line", "ToOrigin"]

_BOM: Final = b"\xef\xbb\xbf"
_ALLOWED: Final = b"Access-Control-Allow-Origin: "
_LINE_END: Final = re.compile(rb"\n")


class Line(Protocol):
    @property
    def gone(self) -> bool:
        """Whether the client has left. The server must not look at it whenever it likes."""
        ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """Everything has been said: FIN."""
        ...

    def reset(self) -> None:
        """RST: what was not delivered yet is lost."""
        ...


class ToOrigin:
    """A line to a page of another origin: the head of what is written names it."""

    def __init__(self, line: Line, origin: bytes) -> None:
        self._line = line
        self._origin = origin

    @property
    def gone(self) -> bool:
        return self._line.gone

    def write(self, data: bytes) -> None:
        if self._origin:
            named = _ALLOWED + self._origin
            data, self._origin = data.replace(_ALLOWED, named, 1), b""
        self._line.write(data)

    def finish(self) -> None:
        self._line.finish()

    def reset(self) -> None:
        self._line.reset()


class Damage:
    """Turns one part of a stream into what is written of it, each piece an HTTP chunk."""

    def __init__(self, fault: Fault | None) -> None:
        self._kind = fault.kind if fault else None
        self._gap_s = (fault.seconds if fault else None) or 0.0
        self._first = True

    async def write(self, events: bytes, line: Line, until: Callable[[float], Awaitable[None]]) -> None:
        if self._kind is FaultKind.BOM and self._first:
            events = _BOM + events
        if self._kind is FaultKind.CRLF:
            events = _LINE_END.sub(b"\r\n", events)
        self._first = False
        if self._kind is not FaultKind.HALF_FRAMES:
            line.write(chunked(events))
            return
        middle = _middle(events)
        line.write(chunked(events[:middle]))
        await until(self._gap_s)
        line.write(chunked(events[middle:]))


def _middle(events: bytes) -> int:
    """Inside of a character of more than one byte, if there is one; else half way."""
    inside = next((index for index, byte in enumerate(events) if 0x80 <= byte < 0xC0), None)
    return inside if inside is not None else len(events) // 2
