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
    """For one request. Calling it writes a piece of its body now, or returns False and does nothing."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(
        self, cycle: RequestResponseCycle, flow: FlowControl, write: Callable[[bytes], None]
    ) -> None:
        self._cycle = cycle
        self._flow = flow
        self._write = write

    def __call__(self, piece: bytes) -> bool:
        cycle = self._cycle
        if (
            self._flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.chunked_encoding
        ):
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True
