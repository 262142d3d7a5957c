"""A parser of server-sent events without IO: feed bytes, get the events that they complete.

The rules come from the event stream format of the HTML standard and from llama-server builds:

* A line ends with LF, CRLF or CR. A blank line ends an event. A CR at the end of a read ends its line at
  once, and an LF at the start of the next read belongs to it. So the parser never waits for a byte that may
  not come.
* Bytes are never decoded here, so a character that is split between two reads stays intact.
* The `data` lines of an event are joined with LF. The space after the colon is optional. `id` and `retry` are
  dropped. An event without data is ignored.
* A comment is reported as soon as its line is complete. A comment inside an event is reported just before the
  event.
* Old llama-server builds report a failure in a field of its own, `error: {...}`, instead of in `data`.
* An event larger than `MAX_EVENT_BYTES` is not held: its data is reported in pieces (`large_event.py`).
"""

from __future__ import annotations

from slotgate.gateway.http.large_event import LargeEvent
from slotgate.gateway.http.sse_event import SseEvent, SseKind

__all__ = ["MAX_EVENT_BYTES", "EventParser", "SseEvent", "SseKind"]

MAX_EVENT_BYTES = 1024 * 1024
"""A parsed event takes several times its size in memory for a moment, and parsing holds the event loop."""
_BOM = b"\xef\xbb\xbf"


class EventParser:
    """Parses one stream. Call `feed` with each read, and `finish` at the end of the body."""

    __slots__ = ("_buffer", "_fresh", "_large", "_skip_lf")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fresh = True
        self._skip_lf = False
        self._large: LargeEvent | None = None
        """Reads the event at the position, if that is a large one."""

    def __repr__(self) -> str:
        return f"<EventParser {len(self._buffer)} bytes pending>"

    @property
    def pending(self) -> bool:
        """True if the parser is inside an event, so that the next bytes do not begin a new one."""
        return bool(self._buffer) or self._fresh or self._skip_lf or self._large is not None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that `data` completes, in order."""
        if self._skip_lf or b"\r" in data:
            data = self._normalised(data)
        return self._events(data)

    def finish(self) -> list[SseEvent]:
        """Return the last event if the body ended without the blank line that ends it."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        events: list[SseEvent] = []
        if self._large is not None:
            return []  # it was cut off
        _read_block(rest, events)
        return events

    def _events(self, data: bytes) -> list[SseEvent]:
        """Like `feed`, for bytes whose line ends are LF."""
        if self._large is not None:
            return self._pieces(self._large, data)
        buffer = self._buffer
        searched = max(0, len(buffer) - 1)
        buffer += data
        if self._fresh and not self._skip_bom():
            return []
        if buffer.find(b"\n\n", searched) < 0:
            return self._incomplete()
        *blocks, rest = bytes(buffer).split(b"\n\n")
        self._buffer = bytearray(rest)
        events: list[SseEvent] = []
        for block in blocks:
            _read_block(block, events)
        if rest:
            events += self._incomplete()
        return events

    def _normalised(self, data: bytes) -> bytes:
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if data.endswith(b"\r"):
            self._skip_lf = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _skip_bom(self) -> bool:
        """Drop a byte order mark at the start. Return False while too few bytes have come to tell."""
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        if self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
        self._fresh = False
        return True

    def _incomplete(self) -> list[SseEvent]:
        """Return complete comment lines of an incomplete event, and pieces of it if it is too large."""
        events: list[SseEvent] = []
        buffer = self._buffer
        while buffer.startswith((b":", b"\n")) and (end := buffer.find(b"\n")) >= 0:
            if end:
                events.append(SseEvent(bytes(buffer[1:end]).removeprefix(b" "), SseKind.COMMENT))
            del buffer[: end + 1]
        if len(buffer) > MAX_EVENT_BYTES:
            self._large = LargeEvent()
            data, self._buffer = bytes(buffer), bytearray()
            return events + self._pieces(self._large, data)
        return events

    def _pieces(self, large: LargeEvent, data: bytes) -> list[SseEvent]:
        """Return the pieces of a large event, and the events behind it."""
        pieces, rest = large.feed(data)
        if rest is None:
            return pieces
        self._large = None
        return pieces + self._events(rest)


def _read_block(block: bytes, events: list[SseEvent]) -> None:
    """Parse the lines of one block: append its comments and then its event."""
    if block.startswith(b"data: ") and b"\n" not in block:
        if len(block) > len(b"data: "):
            events.append(SseEvent(block[6:]))
        return
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not field and line:
            events.append(SseEvent(value, SseKind.COMMENT))
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            events.append(SseEvent(value, SseKind.ERROR_FIELD))
    joined = b"\n".join(data)
    if joined:
        events.append(SseEvent(joined, SseKind.MESSAGE, name))
