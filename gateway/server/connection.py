"""One client connection: uvicorn's httptools protocol, and what a streaming gateway needs besides.

    accepted --> IDLE --first byte--> HEAD --head whole--> ANSWERING --answered--> IDLE
                                                           |       |
                 answered before the request had come whole|       |too much behind it, or garbage
                                                           v       v
                                  IDLE <--its end-- DISCARDING    LAST
                                                           |       |
    everywhere: closed, refused, out of time               '-------'--> LEAVING

Every phase has an end: IDLE after `keep_alive_s`, HEAD after `header_timeout_s`, DISCARDING and LEAVING after
limits of their own; while it is ANSWERING the application's limits hold. In LAST the answers that are owed
go out, and what still comes is thrown away.

What uvicorn 0.54 does, and what therefore is different, stands with each method. Two choices:

* A client that half-closes is gone. A FIN is all that a server sees of most clients that leave, and a
  generation that nobody waits for must end. Whoever shuts down its side before its answer gets none.
* What comes behind a request that is being answered is kept and not parsed, and reading goes on: with
  reading paused the end of the connection would not be noticed. (Where uvicorn pauses for what came with the
  same read, the `receive()` in which every request waits for its client to leave resumes it.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import httptools
import structlog
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError
from slotgate.gateway.server.chunk_writer import ChunkWriter
from slotgate.gateway.server.connection_registry import Admittance, ConnectionRegistry
from slotgate.gateway.server.http10 import close_delimited
from slotgate.gateway.server.request_head import check_size, check_target, too_large, without_upgrade

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

__all__ = ["ClientConnection", "ConnectionPhase"]

LINGER_S = 5.0
"""How long the rest of a request that was answered already is read over, at most."""
FLUSH_S = 60.0
"""How long what was written may take to be sent when the connection closes."""
REFUSED_S = 1.0
"""How long a connection that is one too many may take to ask, so that it can be told."""
MAX_PIPELINED = 16
"""Requests of one connection that wait for the answer before them, at most."""
MAX_AHEAD_BYTES = 64 * 1024
"""Bytes kept that came while an answer was under way."""
log = structlog.stdlib.get_logger(__name__)


class ConnectionPhase(Enum):
    IDLE = "idle"
    HEAD = "head"
    ANSWERING = "answering"
    LAST = "last"
    DISCARDING = "discarding"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class CycleTransport:
    """What uvicorn's request cycle sees of the transport: closing it is the protocol's own affair."""

    write: Callable[[bytes], None]
    is_closing: Callable[[], bool]
    close: Callable[[], None]


class ClientConnection(HttpToolsProtocol):
    def __init__(self, config: Config, connections: ConnectionRegistry) -> None:
        super().__init__(config, connections, app_state={})
        self.phase = ConnectionPhase.IDLE
        self._all = connections
        self._limits = connections.settings
        self.writer: ChunkWriter | None = None
        """Of the last request that had one."""
        self._running: RequestResponseCycle | None = None
        """The request whose answer is under way; those behind it are in uvicorn's `pipeline`."""
        self._ahead = bytearray()
        self._silent_bytes = 0
        """What the parser was fed since it last had something to tell."""
        self._plain_head = b""
        self._head_due = False
        self._head = b""
        """Of the answer, for as long as it may leave together with what follows."""
        self._refusal: GatewayError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        behind = f"{len(self.pipeline)} pipelined, {len(self._ahead)} bytes ahead"
        return f"<ClientConnection {self.phase.value}, {behind}>"

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """uvicorn has no limit of connections: its `limit_concurrency` judges requests, by both numbers."""
        super().connection_made(transport)
        admittance = self._all.opened()
        if admittance is Admittance.SERVED:
            self._rest(self._limits.header_timeout_s)
        elif admittance is Admittance.REFUSED:
            message = f"{self._limits.max_connections} connections are open, which is as many as may be"
            self._refusal = CapacityError(503, "too_many_connections", message)
            self._enter(ConnectionPhase.IDLE, REFUSED_S, self._close)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that came last, not the one that is running."""
        self._enter(ConnectionPhase.LEAVING)
        self._client_gone()
        super().connection_lost(exc)
        self._all.closed()

    def eof_received(self) -> None:
        """Gone now: the transport closes itself, but only when it is rid of what is unsent."""
        self._flush_head()
        self._enter(ConnectionPhase.LEAVING, FLUSH_S, self.transport.abort)
        self._client_gone()

    def data_received(self, data: bytes) -> None:
        """uvicorn parses whatever comes, and pauses reading behind a pipelined request."""
        if self.phase in (ConnectionPhase.LEAVING, ConnectionPhase.LAST):
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif not _whole(self._running):
            self._feed(data)
        else:
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD_BYTES:
                self._refuse(_too_much_ahead())

    def shutdown(self) -> None:
        """uvicorn closes a connection on which a head is just arriving as if it were idle."""
        if self.phase is ConnectionPhase.ANSWERING:
            self.cycle.keep_alive = False
        elif self.phase not in (ConnectionPhase.HEAD, ConnectionPhase.LAST):
            self._close()

    # -- the parser

    def _feed(self, data: bytes) -> None:
        """uvicorn bounds neither a head, nor trailers, nor the extensions of a chunk."""
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._plain_head + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            if self._silent_bytes > self._limits.max_header_bytes:
                self._refuse(too_large(self._limits.max_header_bytes))

    def on_message_begin(self) -> None:
        """Each request gets a way to cut its connection: closing waits until all is sent, and a client that
        does not read never takes it."""
        super().on_message_begin()
        ways_out = {"slotgate.abort": self.transport.abort, "slotgate.hang_up": self._hang_up}
        cast("dict[str, Any]", self.scope)["extensions"] = ways_out
        if self.phase is ConnectionPhase.IDLE:
            self._enter(ConnectionPhase.HEAD, self._limits.header_timeout_s, self._head_late)

    def on_headers_complete(self) -> None:
        """An error raised here, as in every callback, stops the parser and is answered by `_feed`."""
        self._silent_bytes = 0
        check_size(self.url, self.headers, self._limits.max_header_bytes)
        parser = self.parser
        if parser.should_upgrade():
            head = parser.get_method(), self.url, parser.get_http_version(), self.headers
            self._plain_head = without_upgrade(*head)
            return
        check_target(self.url)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _too_much_ahead()
        self._enter(ConnectionPhase.ANSWERING)
        super().on_headers_complete()
        self.headers = []  # what comes now are trailers, and uvicorn would add them to the request's headers
        if self._all.draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request to upgrade is complete behind its head; then it is parsed again, without the upgrade."""
        if self.parser.should_upgrade():
            return
        self._silent_bytes = 0
        super().on_message_complete()
        if self.phase is ConnectionPhase.DISCARDING:
            self._rest(self._limits.keep_alive_s)

    # -- the answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._head_due = True
        transport = CycleTransport(self._write_answer, self._is_leaving, self._answered_last)
        cycle.transport = cast("asyncio.Transport", transport)
        if cycle.scope["http_version"] in ("0.9", "1.0"):
            app = cast("ASGI3Application", close_delimited(cast("ASGIApp", app), cycle))
        else:
            extensions = cast("dict[str, Any]", cycle.scope)["extensions"]
            writer = ChunkWriter(cycle, self.flow, self.transport.write)
            self.writer = extensions["slotgate.write"] = writer
        super()._start_asgi_task(cycle, app)

    def _write_answer(self, data: bytes) -> None:
        """uvicorn writes a head by itself. Here it (or a 100 Continue, which comes first) waits for what
        follows in the same turn of the loop, and the client wakes up once. Whoever writes past this, or
        closes, flushes it; a request behind this one does not begin before the next turn."""
        if self._head_due:
            self._head_due = False
            self._head = data
            self.loop.call_soon(self._flush_head)
        elif self._head:
            head, self._head = self._head, b""
            self.transport.writelines((head, data))
        else:
            self.transport.write(data)

    def _flush_head(self) -> None:
        """Nothing has followed it at once."""
        head, self._head = self._head, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def on_response_complete(self) -> None:
        """uvicorn keeps idle connections for whole seconds, and reads over the rest of a request that was
        answered early for as long as it comes."""
        self._all.total_requests += 1
        answered, self._running = self._running, None
        if self.phase is ConnectionPhase.LEAVING:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif answered is None or _whole(answered):
            self._rest(self._limits.keep_alive_s)
        elif self.expect_100_continue:  # what comes next may be the body, or a request in its place
            self._linger()
        else:
            self._enter(ConnectionPhase.DISCARDING, LINGER_S, self._close)
        if self._ahead:
            data, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(data)

    def _is_leaving(self) -> bool:
        return self.phase is ConnectionPhase.LEAVING or self.transport.is_closing()

    def _answered_last(self) -> None:
        """A cycle closes the connection: it was asked to, or its application failed."""
        if self.phase is ConnectionPhase.LEAVING:
            return
        if self.phase is ConnectionPhase.LAST or not _whole(self._running):
            self._linger()
        else:
            self._close()

    def _refuse(self, error: GatewayError) -> None:
        """Answer what the application is not to see, and leave. uvicorn answers 400 in plain text, and into
        the middle of an answer that is under way; here those that are owed go first, and are the last."""
        self._flush_head()
        running = self._running
        if running is not None and _whole(running):
            owed = [running, *(cycle for cycle, _ in reversed(self.pipeline) if _whole(cycle))]
            owed[-1].keep_alive = False  # with it the connection ends, whatever is behind it
            self._enter(ConnectionPhase.LAST)
            self._ahead.clear()
            return
        if self.phase is not ConnectionPhase.DISCARDING and (running is None or not running.response_started):
            self.transport.write(self._all.refusal(error, self.client))
        self._client_gone()
        self._linger()

    def _hang_up(self) -> None:
        """Close once all that was sent is on its way, although the response may have no end: a stand-in for a
        server that died does that. uvicorn would log it as a fault of the application."""
        if not self._is_leaving():
            self._client_gone()
            self._close()

    def _head_late(self) -> None:
        message = f"the request's headers were not complete within {self._limits.header_timeout_s:g} s"
        self._refuse(ClientError("header_timeout", message, status=408, kind="timeout_error"))

    def _client_gone(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.disconnected = True
            running.message_event.set()
            self._judge_writer()

    def pause_writing(self) -> None:
        """uvicorn tells only those who wait in `send`."""
        super().pause_writing()
        self._judge_writer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._judge_writer()

    def _judge_writer(self) -> None:
        if self.writer is not None:
            self.writer.judge()

    # -- phases

    def _enter(
        self, phase: ConnectionPhase, seconds: float = 0.0, otherwise: Callable[[], None] | None = None
    ) -> None:
        """`otherwise` is called if the phase is not left within so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, otherwise) if otherwise else None
        self._all.idle.pop(self, None)
        self.phase = phase

    def _rest(self, seconds: float) -> None:
        self._enter(ConnectionPhase.IDLE, seconds, self._close)
        self._all.idle[self] = None

    def _linger(self) -> None:
        """Close our half and read over what still comes: bytes that nobody reads would make the kernel reset
        the connection, and a reset can overtake the answer (RFC 9112, 9.6)."""
        self._flush_head()
        self._enter(ConnectionPhase.LEAVING, LINGER_S, self._close)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self) -> None:
        """Close once all is sent, or when that takes too long; uvicorn waits for ever."""
        self._flush_head()
        self._enter(ConnectionPhase.LEAVING, FLUSH_S, self.transport.abort)
        self.transport.close()


def _whole(cycle: RequestResponseCycle | None) -> bool:
    """Whether there is this request, and all of it has come."""
    return cycle is not None and not cycle.more_body


def _reason(error: httptools.HttpParserError) -> GatewayError:
    """Why the parser stopped: a callback of ours refused, or failed, or this is not HTTP."""
    cause = error.__context__
    if isinstance(cause, GatewayError):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("internal error", exc_info=cause)
        return GatewayError(500, "server_error", "internal_error", "the gateway failed to read the request")
    return ClientError("invalid_request", f"this is not a request in HTTP/1.1: {error}")


def _too_much_ahead() -> ClientError:
    return ClientError("invalid_request", "too much was sent before the answer to the request before it")
