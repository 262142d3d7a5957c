"""The faults of a script that change the form of a stream and not its content."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from slotgate.gateway.testing.fake.net.wire import chunked
from slotgate.gateway.testing.fake.net.writer import ResponseWriter
from slotgate.gateway.testing.fake.script.scene import FaultKind, ScriptedFault

__all__ = ["StreamDamage"]

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\n")


class StreamDamage:
    """Writes the events of one stream as HTTP chunks, changed as the fault says."""

    def __init__(self, fault: ScriptedFault | None) -> None:
        self._kind = fault.kind if fault else None
        self._gap_s = (fault.seconds if fault else None) or 0.0
        self._first = True

    async def write(
        self, events: bytes, writer: ResponseWriter, until: Callable[[float], Awaitable[None]]
    ) -> None:
        if self._kind is FaultKind.BOM and self._first:
            events = _BOM + events
        if self._kind is FaultKind.CRLF:
            events = _LINE_END.sub(b"\r\n", events)
        self._first = False
        if self._kind is not FaultKind.HALF_FRAMES:
            writer.write(chunked(events))
            return
        middle = _middle(events)
        writer.write(chunked(events[:middle]))
        await until(self._gap_s)
        writer.write(chunked(events[middle:]))


def _middle(events: bytes) -> int:
    """Return an offset inside a multi-byte character, or half of the length if there is no such character."""
    inside = next((index for index, byte in enumerate(events) if 0x80 <= byte < 0xC0), None)
    return inside if inside is not None else len(events) // 2
