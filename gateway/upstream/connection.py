"""One HTTP/1.1 connection to a backend, on a C parser, reading as fast as the backend writes.

An exchange is one request and its response. The connection pushes the response into a `Sink`, from within
the event loop's read callback: no task, queue or wrapper stands between the socket and what makes
frames of it. The sink learns at once when the message is complete, however far its consumer is, and may
pause reading when its buffer is full.

    IDLE --send()--> WAITING --headers--> RECEIVING --final chunk or length--> COMPLETE --reuse--> IDLE
                        \\---------------------\\-- closed, broken, cut short --> CLOSED

An exchange may begin before there is a connection: what it has to send leaves as soon as there is one, or by
`send_by` through a socket that the event loop does not know yet. Every exchange ends in exactly one
`Sink.ended`. A body without length and chunking ends with the connection, which looks the same as a backend
that died: it counts as cut short.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, cast

import httptools
import structlog

__all__ = ["End", "Sink", "State", "UpstreamConnection"]

Headers = list[tuple[bytes, bytes]]
BURST_BYTES = 64 * 1024
"""A read this long means that the backend is faster than this loop."""
MAX_HEAD_BYTES = 64 * 1024
"""Of status line and headers, interim responses included."""
log = structlog.stdlib.get_logger(__name__)


class End(Enum):
    """How an exchange ended, as seen on the wire."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    """The connection closed before the message was complete."""
    BROKEN = "broken"
    """What came was no HTTP message, or in an encoding that was not asked for."""
    CLOSED = "closed"
    """We closed it."""
    UNREACHABLE = "unreachable"
    """There was no connection, and nothing was sent."""


class Sink(Protocol):
    """Where a response goes. The calls come from the event loop and must not block or raise."""

    def head(self, status: int, headers: Headers) -> None:
        """Status line and headers (names in lower case) have come."""

    def body(self, data: bytes) -> None:
        """Bytes of the body, without chunk framing, as they were read."""

    def read_over(self) -> Callable[[bytes], bool] | None:
        """All that one read brought has been pushed; more reads may follow.

        Returns what may be offered reads before the parser sees them, until the parser has seen another. It
        is called with reads that begin where a chunk begins. True: that was exactly one chunk, and all that
        there was to do with it is done.
        """

    def ended(self, end: End) -> None:
        """The exchange is over; nothing follows."""


class State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    CLOSED = "closed"


class UpstreamConnection(asyncio.Protocol):
    """`closed` is a future that is done when the socket is gone."""

    __slots__ = (
        "_between_chunks",
        "_dialling",
        "_express",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_loop",
        "_parser",
        "_push",
        "_reading",
        "_sink",
        "_socket",
        "_transport",
        "_unsent",
        "closed",
        "exchanges",
        "failure",
        "heard",
        "received_bytes",
        "sent",
        "state",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.state = State.IDLE
        self.closed: asyncio.Future[None] = loop.create_future()
        self.received_bytes = False
        """Whether any byte of the current response has come."""
        self.sent = False
        """Whether anything of the current request may have reached the backend."""
        self.failure: BaseException | None = None
        """Why there was no connection."""
        self.exchanges = 0
        self.heard = False
        """Whether anything has come since this was set to False."""
        self._dialling: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        """What is connected already, and not yet the event loop's."""
        self._unsent: list[bytes | memoryview] = []
        """What waits for the connection."""
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._in_head = True
        self._head_bytes = 0
        self._headers: Headers = []
        self._parser: httptools.HttpResponseParser | None = None
        self._push: Callable[[bytes], None] = _ignored
        """Where the body of the current response goes."""
        self._express: Callable[[bytes], bool] | None = None
        self._between_chunks = False
        self._reading = True

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self.state.value}, {self.exchanges} exchanges>"

    # -- what its user calls

    def send(self, head: bytes, body: Sequence[bytes | memoryview], sink: Sink) -> None:
        """Begin an exchange. The connection must be IDLE; it need not be made yet."""
        transport = self._transport
        if self.state is not State.IDLE or (transport is not None and transport.is_closing()):
            sink.ended(End.CUT_SHORT)  # it was closed while it was kept
            return
        self.state = State.WAITING
        self.received_bytes = False
        self.sent = False
        self.exchanges += 1
        self._in_head = True
        self._between_chunks = False
        self._head_bytes = 0
        self._headers = []
        self._sink = sink
        self._push = sink.body
        self._parser = httptools.HttpResponseParser(self)
        if sum(map(len, body)) > BURST_BYTES:
            self._unsent += (head, *body)
        else:
            self._unsent.append(b"".join((head, *body)))
        if transport is not None:
            self._send_rest(transport)

    def send_by(self, connected: socket.socket) -> None:
        """Have a socket send what it takes without waiting, and keep it for the event loop.

        Raises `OSError` if it takes nothing; then nothing has changed, and the socket is the caller's.
        """
        first = self._unsent[0]
        size = connected.send(first)
        self._socket = connected
        self.sent = True
        self._unsent[0] = memoryview(first)[size:]

    def take_socket(self) -> socket.socket:
        """For the event loop: whoever takes it makes this connection of it, or closes it."""
        taken, self._socket = self._socket, None
        assert taken is not None
        return taken

    def made_by(self, dialling: asyncio.Task[None]) -> None:
        """Either it makes the connection, or it fails. Closing the connection cancels it."""
        self._dialling = dialling
        dialling.add_done_callback(self._dialled)

    async def connected(self) -> bool:
        """Wait until there is a connection; False if there is none."""
        if self._dialling is not None:
            await asyncio.wait([self._dialling])
        return self._transport is not None

    @property
    def reusable(self) -> bool:
        """Whether another exchange may be begun."""
        return self.state is State.IDLE and self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close the socket now, whatever is under way; unsent bytes are dropped."""
        self._end(End.CLOSED)
        if self._transport is not None:
            self._transport.abort()
        elif self._dialling is not None:
            self._dialling.cancel()

    def pause(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.state is State.CLOSED:
            self._transport.abort()
        elif self._unsent:
            self._send_rest(self._transport)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        fast_path = self._express
        if fast_path is not None and fast_path(data):
            return
        parser = self._parser
        if parser is None:
            self.close()  # bytes that nobody asked for
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, zlib.error):
                log.warning("internal error", error=repr(error.__context__), exc_info=error.__context__)
            self._fail()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail()
        if self._in_head:
            self._head_goes_on(len(data))
        sink = self._sink
        if sink is not None:
            fast_path = sink.read_over()
            # Not within the size of the next chunk, of which nothing may have been read, nor within what is
            # deflated, nor when the exchange has ended on the way.
            offered = self._between_chunks and data.endswith(b"\r\n") and self._push == sink.body
            self._express = fast_path if offered else None
        if len(data) >= BURST_BYTES:
            self._let_others_in()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(End.CUT_SHORT)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- httptools callbacks

    def on_message_begin(self) -> None:
        if self._parser is None:
            self.close()  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser is None or self._sink is None:
            return  # closed on the way, but the parser reads on to the end of its bytes
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._headers = []
            return
        self.state = State.RECEIVING
        self.received_bytes = True
        self._in_head = False
        untrue = {b"content-encoding"}
        for name, value in self._headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                self._push = _inflated(value.lower(), self._sink.body)
                untrue.add(b"content-length")  # it counts what was deflated
        self._sink.head(status, [pair for pair in self._headers if pair[0] not in untrue])

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_body(self, data: bytes) -> None:
        self._push(data)

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self.state is not State.RECEIVING:
            return
        assert self._parser is not None
        assert self._transport is not None
        all_sent = self._transport.get_write_buffer_size() == 0
        if self._parser.should_keep_alive() and self._reading and all_sent:
            self._end(End.COMPLETE, State.IDLE)
        else:
            self._transport.abort()  # nothing that is unsent is wanted any more
            self._end(End.COMPLETE, State.COMPLETE)

    # -- mechanism

    def _send_rest(self, transport: asyncio.Transport) -> None:
        self.sent = True
        for piece in self._unsent:
            transport.write(piece)
        self._unsent = []

    def _dialled(self, dialling: asyncio.Task[None]) -> None:
        """Where it failed or was given up, uvloop drops a transport without a word to its protocol."""
        self._dialling = None
        self.failure = failure = None if dialling.cancelled() else dialling.exception()
        if failure is not None and not isinstance(failure, OSError) and self.state is not State.CLOSED:
            log.warning("internal error", error=repr(failure), exc_info=failure)
        if dialling.cancelled() or failure is not None:
            self._end(End.CUT_SHORT if self.sent else End.UNREACHABLE)
            self.close()
            if self._socket is not None:
                self._socket.close()
            self.connection_lost(None)

    def _let_others_in(self) -> None:
        """libuv goes on reading a busy socket many times before it looks at another: end its turn here."""
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _head_goes_on(self, size: int) -> None:
        """A read was part of a head that has not ended."""
        self.received_bytes = True
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES and self._sink is not None:
            self._fail()

    def _fail(self) -> None:
        self._end(End.BROKEN)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, end: End, state: State = State.CLOSED) -> None:
        sink, self._sink, self._parser = self._sink, None, None
        self._push = _ignored
        self._express = None
        self.state = state
        if sink is not None:
            sink.ended(end)


def _ignored(_: bytes) -> None:
    """Nobody listens: the exchange was closed, but the parser reads on to the end of its bytes."""


def _inflated(encoding: bytes, push: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """For a backend (or a proxy before it) that compresses although it was asked not to."""
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise zlib.error(f"unknown content-encoding {encoding!r}")
    inflater = zlib.decompressobj(wbits=47 if encoding != b"deflate" else 15)

    def inflate(data: bytes) -> None:
        if plain := inflater.decompress(data):
            push(plain)

    return inflate
