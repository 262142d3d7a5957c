"""A server-sent event that is too large to hold: its data leaves in pieces, as it comes.

Line ends are LF already. Memory is bounded whatever the event holds: of a line other than `data`, no more
than its beginning is kept.
"""

from __future__ import annotations

from slotgate.gateway.http.sse_event import SseEvent, SseKind

__all__ = ["LargeEvent"]

_DATA = b"data:"
_MAX_OTHER_BYTES = 1024


class LargeEvent:
    """Reads one event, from its first byte to the end of its blank line."""

    __slots__ = ("_has_data", "_in_data", "_in_line", "_other", "_start", "name")

    def __init__(self) -> None:
        self.name = b""
        self._start = b""
        """The beginning of a line whose field is not known yet."""
        self._in_line = False
        self._in_data = False
        """True if the line is a `data` line. Valid inside a line."""
        self._has_data = False
        self._other = bytearray()
        """The beginning of a line that is no `data` line."""

    def feed(self, read: bytes) -> tuple[list[SseEvent], bytes | None]:
        """Return the pieces, and the bytes behind the event; None while the event goes on."""
        data, self._start = self._start + read, b""
        pieces: list[SseEvent] = []
        at = 0
        while at < len(data):
            if not self._in_line:
                if data.startswith(b"\n", at):
                    pieces.append(SseEvent(b"", SseKind.LAST, self.name))
                    return pieces, data[at + 1 :]
                start = data[at : at + 6]
                if len(start) < 6 and (_DATA.startswith(start) or start == _DATA):
                    self._start = start
                    break
                at += self._begin_line(start, pieces)
            end = data.find(b"\n", at)
            stop = end if end >= 0 else len(data)
            self._take(data[at:stop], pieces)
            if end < 0:
                break
            self._end_line(pieces)
            at = end + 1
        return pieces, None

    def _begin_line(self, start: bytes, pieces: list[SseEvent]) -> int:
        """Return the number of bytes before the line's value."""
        self._in_line, self._in_data = True, start.startswith(_DATA)
        if not self._in_data:
            return 0
        if self._has_data:
            pieces.append(SseEvent(b"\n", SseKind.PIECE, self.name))
        self._has_data = True
        return len(_DATA) + start.endswith(b" ")

    def _take(self, value: bytes, pieces: list[SseEvent]) -> None:
        if not self._in_data:
            self._other += value[: _MAX_OTHER_BYTES - len(self._other)]
        elif value:
            pieces.append(SseEvent(value, SseKind.PIECE, self.name))

    def _end_line(self, pieces: list[SseEvent]) -> None:
        self._in_line = False
        field, _, value = bytes(self._other).partition(b":")
        self._other.clear()
        value = value.removeprefix(b" ")
        if self._in_data:
            return
        if not field:
            pieces.append(SseEvent(value, SseKind.COMMENT))
        elif field == b"event":
            self.name = value
