"""Writing a piece of a chunked body without a detour: what `send` comes to for nearly every frame.

uvicorn's `send` is a coroutine that judges a message before it writes. When a response has begun, is chunked
and its client keeps up, all that is left of it is one write. The server offers that write to the application
as an extension, `slotgate.write`; whatever else there is to do still goes through `send` and its wrappers,
the beginning and the end of every response among it.
"""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["ChunkWriter"]


class ChunkWriter:
    """For one request: writes to its body now, or returns False and does nothing."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(
        self, cycle: RequestResponseCycle, flow: FlowControl, write: Callable[[bytes], None]
    ) -> None:
        self._cycle = cycle
        self._flow = flow
        self._write = write

    @property
    def chunked(self) -> bool:
        """Whether a chunked response is under way."""
        return self._cycle.chunked_encoding is True and not self._cycle.response_complete

    def piece(self, piece: bytes) -> bool:
        return self.chunked and self.chunk(b"%x\r\n%b\r\n" % (len(piece), piece))

    def chunk(self, chunk: bytes) -> bool:
        """A piece with its size before it and a line end behind it. Only while `chunked`."""
        if self._flow.write_paused or self._cycle.disconnected:
            return False
        write = self._write
        write(chunk)
        return True
