"""Direct writes to a chunked body, for the frames for which `send` would come down to one write.

uvicorn's `send` is a coroutine that checks a message before it writes. Once a response has begun, is chunked
and its client keeps up, only one write remains of it. The server offers that write to the application as the
extension `slotgate.write`. Everything else goes through `send` and its wrappers, above all the beginning and
the end of every response.

`now` is that write, and makes no checks of its own. It is None while a direct write is not allowed. Both
sides report only their changes, not every frame: the application calls `open` and `shut` (it has not begun,
or bytes are waiting), and the server calls `judge` (the client is behind, or has left).
"""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["ChunkWriter"]


class ChunkWriter:
    """Belongs to one request."""

    __slots__ = ("_cycle", "_flow", "_open", "_write", "now")

    def __init__(
        self, cycle: RequestResponseCycle, flow: FlowControl, write: Callable[[bytes], None]
    ) -> None:
        self._cycle: RequestResponseCycle | None = cycle
        self._flow = flow
        self._write = write
        self._open = False
        self.now: Callable[[bytes], None] | None = None
        """Writes one chunk, size line included. None while direct writes are not allowed."""

    def __repr__(self) -> str:
        state = "writable" if self.now is not None else "open" if self._open else "shut"
        return f"<ChunkWriter {state}>"

    def piece(self, piece: bytes) -> bool:
        """Write a piece of the body at once and return True, or return False if only `send` can."""
        if not self._flows:
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def open(self) -> None:
        """Allow direct writes: all bytes of the application have been written."""
        self._open = True
        self.judge()

    def shut(self) -> None:
        """Forbid direct writes: bytes of the application are waiting, or its body has ended."""
        self._open = False
        self.now = None

    def judge(self) -> None:
        """Look again at the server's side, which has changed."""
        self.now = self._write if self._open and self._flows else None

    def end(self) -> None:
        """Forbid direct writes for good, and let go of the request, whose scope refers to this object."""
        self.shut()
        self._cycle = None

    @property
    def _flows(self) -> bool:
        """True if a chunked response is under way and its client keeps up."""
        cycle = self._cycle
        return (
            cycle is not None
            and cycle.chunked_encoding is True
            and not cycle.response_complete
            and not cycle.disconnected
            and not self._flow.write_paused
        )
