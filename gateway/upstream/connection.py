"""An HTTP/1.1 connection to a backend. It uses a C parser and reads as fast as the backend writes.

An exchange is one request and its response. The connection pushes the response into a `Sink` from within the
event loop's read callback, with no task, queue or wrapper between the socket and the code that makes frames.
The sink is told as soon as the message is complete, however far behind its own consumer is. It may pause
reading when its buffer is full.

    IDLE --send()--> WAITING --headers--> RECEIVING --last chunk or length--> COMPLETE --reuse--> IDLE
                        \\---------------------\\-- closed, broken, cut short --> CLOSED

An exchange may begin before the connection is made: its bytes are sent once it is, or by `send_by` through a
socket that the event loop does not know yet. Every exchange ends in exactly one call of `Sink.ended`. A body
with neither a length nor chunks ends with the connection. That cannot be told from a backend that died, so it
counts as cut short.
"""

from __future__ import annotations

import asyncio
import select
import socket
import zlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import cast

import httptools
import structlog

from slotgate.gateway.upstream.inflation import inflated
from slotgate.gateway.upstream.sink import End, Headers, Sink

__all__ = ["UpstreamConnection", "UpstreamPhase"]

BURST_BYTES = 64 * 1024
"""A read of this length means that the backend is faster than this event loop."""
MAX_HEAD_BYTES = 64 * 1024
"""The limit of what comes before, between and after the parts of the body: status line, headers, interim
responses, sizes of chunks, trailers."""
log = structlog.stdlib.get_logger(__name__)


class UpstreamPhase(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    CLOSED = "closed"


class UpstreamConnection(asyncio.Protocol):
    """`closed` is a future that is done when the socket is closed."""

    __slots__ = (
        "_between_chunks",
        "_dialling",
        "_fast_path",
        "_headers",
        "_loop",
        "_parser",
        "_push",
        "_reading",
        "_silent_bytes",
        "_sink",
        "_socket",
        "_transport",
        "_unsent",
        "closed",
        "exchanges",
        "failure",
        "heard",
        "phase",
        "received_bytes",
        "sent",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Per connection.
        self.phase = UpstreamPhase.IDLE
        self.closed: asyncio.Future[None] = loop.create_future()
        self.failure: BaseException | None = None
        """The reason why no connection could be made."""
        self.exchanges = 0
        """The number of exchanges begun."""
        self.heard = False
        """True if any byte has come since the owner set this to False."""
        self._loop = loop
        self._dialling: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        """A connected socket that has not been given to the event loop yet."""
        self._transport: asyncio.Transport | None = None
        self._reading = True

        # Per request.
        self.sent = False
        """True if any byte of the request may have reached the backend."""
        self._sink: Sink | None = None
        self._unsent: list[bytes | memoryview] = []
        """The bytes that wait until the connection is made."""

        # Per response.
        self.received_bytes = False
        """True if any byte of the response has come."""
        self._parser: httptools.HttpResponseParser | None = None
        self._silent_bytes = 0
        """Bytes since the last part of the body, or since the start. The parser keeps them: headers, trailers
        and sizes of chunks."""
        self._headers: Headers = []
        self._push: Callable[[bytes], None] | None = None
        """Takes the body: the sink's `body`, or what decompresses for it. None before the sink has got the
        head, because an interim response has no body, and one that it has all the same is dropped. None when
        the exchange is over, too, although the parser still reads to the end of its bytes."""
        self._between_chunks = False
        self._fast_path: Callable[[bytes], bool] | None = None

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self.phase.value}, {self.exchanges} exchanges>"

    # -- called by the owner

    def send(self, head: bytes, body: Sequence[bytes | memoryview], sink: Sink) -> None:
        """Begin an exchange. The connection must be IDLE; it need not be made yet."""
        transport = self._transport
        self.sent = False
        if self.phase is not UpstreamPhase.IDLE or (transport is not None and transport.is_closing()):
            sink.ended(End.CUT_SHORT)  # it was closed while it was kept for reuse
            return
        self.phase = UpstreamPhase.WAITING
        self.exchanges += 1
        self._sink = sink
        self.received_bytes = False
        self._parser = httptools.HttpResponseParser(self)
        self._silent_bytes = 0
        self._headers = []
        self._push = None
        self._between_chunks = False
        if sum(map(len, body)) > BURST_BYTES:
            self._unsent += (head, *body)
        else:
            self._unsent.append(b"".join((head, *body)))
        if transport is not None:
            self._send_rest(transport)

    def send_by(self, connected: socket.socket) -> None:
        """Send over this socket as much as it takes without waiting, and keep the socket for the event loop.

        Raises `OSError` if it takes nothing. Then nothing has changed, and the caller still owns the socket.
        """
        first = self._unsent[0]
        size = connected.send(first)
        self._socket = connected
        self.sent = True
        self._unsent[0] = memoryview(first)[size:]

    def take_socket(self) -> socket.socket:
        """Return the socket that `send_by` kept. The caller must give it to the event loop or close it."""
        taken, self._socket = self._socket, None
        assert taken is not None
        return taken

    def made_by(self, dialling: asyncio.Task[None]) -> None:
        """Name the task that makes this connection, or fails. Closing the connection cancels the task."""
        self._dialling = dialling
        dialling.add_done_callback(self._dialled)

    async def connected(self) -> bool:
        """Wait until the connection is made. Return False if it could not be made."""
        if self._dialling is not None:
            await asyncio.wait([self._dialling])
        return self._transport is not None

    @property
    def reusable(self) -> bool:
        """True if another exchange may begin."""
        transport = self._transport
        return self.phase is UpstreamPhase.IDLE and transport is not None and not transport.is_closing()

    @property
    def has_unread_input(self) -> bool:
        """True if the socket has bytes or an end that the event loop has not read yet.

        On an idle connection either means that the backend will not answer another request on it.
        """
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the socket now, in whatever phase it is. Unsent bytes are dropped."""
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
        if self.phase is UpstreamPhase.CLOSED:
            self._transport.abort()
        elif self._unsent:
            self._send_rest(self._transport)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        fast_path = self._fast_path
        if fast_path is not None and fast_path(data):
            return
        parser = self._parser
        if parser is None:
            self.close()  # no request is waiting for these bytes
            return
        self.received_bytes = True
        self._silent_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, zlib.error):
                log.warning("internal error", error=repr(error.__context__), exc_info=error.__context__)
            self._fail()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail()
        if self._silent_bytes > MAX_HEAD_BYTES:
            self._fail()
        sink = self._sink
        if sink is not None:
            fast_path = sink.read_over()
            # The next read begins at a chunk boundary if this one ended a chunk and did not go on with a part
            # of the next chunk's size. A fast path is not for a body that is decompressed, or has ended.
            if not (self._between_chunks and data.endswith(b"\r\n") and self._push == sink.body):
                fast_path = None
            self._fast_path = fast_path
        if len(data) >= BURST_BYTES:
            self._yield_to_other_sockets()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(End.CUT_SHORT)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- httptools callbacks

    def on_message_begin(self) -> None:
        if self._parser is None:
            self.close()  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser is None or self._sink is None:
            return  # the sink closed the exchange, but the parser still reads to the end of its bytes
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._headers = []
            return
        self.phase = UpstreamPhase.RECEIVING
        self._push = self._sink.body
        untrue = {b"content-encoding"}
        for name, value in self._headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                self._push = inflated(value.lower(), self._sink.body)
                untrue.add(b"content-length")  # the length of the compressed body
        self._sink.head(status, [pair for pair in self._headers if pair[0] not in untrue])

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_body(self, data: bytes) -> None:
        push = self._push
        if push is not None:
            self._silent_bytes = 0
            push(data)

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self.phase is not UpstreamPhase.RECEIVING:
            return
        assert self._parser is not None
        assert self._transport is not None
        all_sent = self._transport.get_write_buffer_size() == 0
        if self._parser.should_keep_alive() and self._reading and all_sent:
            self._end(End.COMPLETE, UpstreamPhase.IDLE)
        else:
            self._transport.abort()  # the backend has answered, so unsent bytes are not needed any more
            self._end(End.COMPLETE, UpstreamPhase.COMPLETE)

    # -- mechanism

    def _send_rest(self, transport: asyncio.Transport) -> None:
        self.sent = True
        for piece in self._unsent:
            transport.write(piece)
        self._unsent = []

    def _dialled(self, dialling: asyncio.Task[None]) -> None:
        """End the exchange if dialling failed or was cancelled: uvloop then drops the transport silently."""
        self._dialling = None
        self.failure = failure = None if dialling.cancelled() else dialling.exception()
        if (
            failure is not None
            and not isinstance(failure, OSError)
            and self.phase is not UpstreamPhase.CLOSED
        ):
            log.warning("internal error", error=repr(failure), exc_info=failure)
        if failure is not None:
            _without_tracebacks(failure)
        if dialling.cancelled() or failure is not None:
            self._end(End.CUT_SHORT if self.sent else End.UNREACHABLE)
            self.close()
            if self._socket is not None:
                self._socket.close()
            self._unsent = []
            self.connection_lost(None)

    def _yield_to_other_sockets(self) -> None:
        """Pause reading for one turn: libuv reads a busy socket many times before it looks at another."""
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _fail(self) -> None:
        self._end(End.BROKEN)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, end: End, phase: UpstreamPhase = UpstreamPhase.CLOSED) -> None:
        sink, self._sink, self._parser = self._sink, None, None
        self._push = None
        self._fast_path = None
        self.phase = phase
        if sink is not None:
            sink.ended(end)


def _without_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an error and its causes: their frames hold the connection that keeps it."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
