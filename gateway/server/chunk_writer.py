"""Writing to a chunked body without a detour: what `send` comes to for nearly every frame.

uvicorn's `send` is a coroutine that judges a message before it writes. When a response has begun, is chunked
and its client keeps up, all that is left of it is one write. The server offers that write to the application
as an extension, `slotgate.write`; whatever else there is to do still goes through `send` and its wrappers,
the beginning and the end of every response among it.

`now` is that write while nothing at all is in its way, and asks nothing more: who may be in the way says so
when that changes, and not for every frame. That is the application, which has something waiting or has not
begun (`open`, `shut`), and the server, whose client is behind or gone (`judge`).
"""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["ChunkWriter"]


class ChunkWriter:
    """For one request."""

    __slots__ = ("_cycle", "_flow", "_open", "_write", "now")

    def __init__(
        self, cycle: RequestResponseCycle, flow: FlowControl, write: Callable[[bytes], None]
    ) -> None:
        self._cycle = cycle
        self._flow = flow
        self._write = write
        self._open = False
        self.now: Callable[[bytes], None] | None = None
        """Writes a chunk, its size line and all; None while anything is in the way."""

    def __repr__(self) -> str:
        return f"<ChunkWriter {'clear' if self.now is not None else 'open' if self._open else 'shut'}>"

    def piece(self, piece: bytes) -> bool:
        """Writes a piece of the body now, or returns False and does nothing."""
        if not self._flows:
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def open(self) -> None:
        """All that the application has put has been written."""
        self._open = True
        self.judge()

    def shut(self) -> None:
        self._open = False
        self.now = None

    def judge(self) -> None:
        """The server's side has changed."""
        self.now = self._write if self._open and self._flows else None

    @property
    def _flows(self) -> bool:
        """Whether a chunked response is under way to a client that keeps up."""
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.response_complete
            and not cycle.disconnected
            and not self._flow.write_paused
        )
