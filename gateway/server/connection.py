"""A client connection: uvicorn's httptools protocol, extended by limits, timeouts and direct writes.

    accepted --> IDLE --first byte--> HEAD --head whole--> ANSWERING --answered--> IDLE
                                                           |       |
                 answered before the request had come whole|       |too much behind it, or garbage
                                                           v       v
                                  IDLE <--its end-- DISCARDING    LAST
                                                           |       |
    everywhere: closed, refused, out of time               '-------'--> LEAVING

Every phase ends: IDLE after `keep_alive_s`, HEAD after `header_timeout_s`, DISCARDING and LEAVING after
limits of their own. In ANSWERING, the application's limits apply. In LAST, the answers that are under way are
sent, and bytes that still come are dropped.

Where a method differs from uvicorn 0.54, its docstring says what uvicorn does. Two choices apply throughout:

* A client that half-closes counts as gone. A FIN is the only sign of most clients that leave, and a stream
  without a reader must end. So a client that shuts down its side before the answer gets no answer.
* Bytes that come after a request that is being answered are kept and not parsed, and reading goes on: with
  reading paused, the end of the connection would not be noticed. (uvicorn pauses if those bytes came in the
  same read. Every request waits in `receive()` for its client to leave, and that resumes reading.)
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import httptools
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.server.chunk_writer import ChunkWriter
from slotgate.gateway.server.client_output import ClientOutput
from slotgate.gateway.server.connection_phase import ConnectionPhase
from slotgate.gateway.server.connection_registry import Admittance, ConnectionRegistry
from slotgate.gateway.server.refusals import (
    header_timeout,
    parser_stopped,
    too_many_connections,
    too_much_ahead,
)
from slotgate.gateway.server.request_head import (
    check_framing,
    check_size,
    check_target,
    set_host,
    too_large,
    without_upgrade,
)

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

__all__ = ["ClientConnection"]

LINGER_S = 5.0
"""Seconds for which the rest of a request is read and dropped after its answer, at most."""
FLUSH_S = 60.0
"""Seconds that written bytes may take to be sent when the connection closes."""
RESERVED_S = 1.0
"""Seconds for which a connection of the reserve may send its request."""
MAX_PIPELINED = 16
"""The number of requests of one connection that may wait for the answer to the one before."""
MAX_AHEAD_BYTES = 64 * 1024
"""The number of bytes that are kept while an answer is under way."""


class ClientConnection(HttpToolsProtocol):
    def __init__(self, config: Config, connections: ConnectionRegistry) -> None:
        super().__init__(config, connections, app_state={})
        # Per connection.
        self.phase = ConnectionPhase.IDLE
        self._registry = connections
        self._limits = connections.settings
        self._timer: asyncio.TimerHandle | None = None
        """Ends the phase."""
        self._output: ClientOutput
        """Writes the answers. Set once the connection is made."""
        self.address = ""
        self._head_s = self._limits.header_timeout_s
        """Seconds for which a head may take."""
        self._refusal: GatewayError | None = None
        """The answer to most requests, if the connection belongs to the reserve."""
        self._ahead = bytearray()
        """Bytes that came while an answer was under way."""

        # Per request that is being read.
        self._silent_bytes = 0
        """Bytes that the parser was fed since it last reported something."""
        self._plain_head = b""
        """The head without its wish to upgrade."""

        # Per request that is being answered.
        self._running: RequestResponseCycle | None = None
        """The request itself. The requests after it are in uvicorn's `pipeline`."""
        self._is_last = False
        """True once the connection is to end with the answer that was completed last."""

    @property
    def writer(self) -> ChunkWriter | None:
        """The direct writer of the answer that is under way."""
        return self._output.writer

    def __repr__(self) -> str:
        behind = f"{len(self.pipeline)} pipelined, {len(self._ahead)} bytes ahead"
        return f"<ClientConnection {self.phase.value}, {behind}>"

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """uvicorn has no limit of connections: its `limit_concurrency` refuses requests, by either number."""
        super().connection_made(transport)
        self._output = ClientOutput(transport, self.flow, self.loop)
        self.address = self.client[0] if self.client else ""
        admittance = self._registry.opened(self)
        if admittance is Admittance.DROPPED:
            transport.abort()
            return
        if admittance is Admittance.RESERVED:
            self._refusal = too_many_connections()
            self._head_s = RESERVED_S
        self._rest(self._head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that its client is gone. uvicorn tells only the request that came last."""
        self._enter(ConnectionPhase.LEAVING)
        self._client_gone()
        super().connection_lost(exc)
        self._registry.closed(self)
        self._forget_requests()

    def eof_received(self) -> None:
        """The client counts as gone now. The transport closes by itself, but only when all bytes are sent."""
        self._output.flush()
        if self._output.sending:  # its own clock goes on
            self._enter(ConnectionPhase.LEAVING)
        else:
            self._enter(ConnectionPhase.LEAVING, FLUSH_S, self.transport.abort)
        self._client_gone()

    def data_received(self, data: bytes) -> None:
        """uvicorn parses all bytes at once, and pauses reading after a pipelined request."""
        if self.phase in (ConnectionPhase.LEAVING, ConnectionPhase.LAST):
            return
        if not self._output.sending and not _whole(self._running):
            self._feed(data)
        else:
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD_BYTES:
                self._refuse(too_much_ahead())

    def shutdown(self) -> None:
        """uvicorn treats a connection on which a head is just arriving as idle, and closes it."""
        if self.phase is ConnectionPhase.ANSWERING:
            self.cycle.keep_alive = False
        elif self.phase not in (ConnectionPhase.HEAD, ConnectionPhase.LAST):
            self._close()

    def evict(self) -> bool:
        """Close for a new connection, unless a request is being answered here."""
        if self.phase in (ConnectionPhase.ANSWERING, ConnectionPhase.LAST):
            return False
        if self.phase is ConnectionPhase.LEAVING:
            self.transport.abort()
        else:
            self._close()
        return True

    # -- the parser

    def _feed(self, data: bytes) -> None:
        """uvicorn limits the size of neither a head, nor trailers, nor chunk extensions."""
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._plain_head + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(parser_stopped(error))
        else:
            if self._silent_bytes > self._limits.max_header_bytes:
                self._refuse(too_large(self._limits.max_header_bytes))

    def on_message_begin(self) -> None:
        """Offer two ways to end the connection to each request.

        An ordinary close waits until all bytes are sent, and a client that does not read never takes them.
        """
        super().on_message_begin()
        extensions = {"slotgate.abort": self.transport.abort, "slotgate.hang_up": self._hang_up}
        cast("dict[str, Any]", self.scope)["extensions"] = extensions
        if self.phase is ConnectionPhase.IDLE:
            self._enter(ConnectionPhase.HEAD, self._head_s, self._head_late)

    def on_headers_complete(self) -> None:
        """Check the head. An error in any callback of the parser stops it, and `_feed` sends the answer."""
        self._silent_bytes = 0
        check_size(self.url, self.headers, self._limits.max_header_bytes)
        parser = self.parser
        check_framing(parser.get_http_version(), self.headers)
        set_host(self.url, parser.get_http_version(), self.headers)
        if parser.should_upgrade():
            head = parser.get_method(), self.url, parser.get_http_version(), self.headers
            self._plain_head = without_upgrade(*head)
            return
        path = check_target(self.url)
        if self._refusal is not None and not self._registry.is_reserved_for(path):
            raise self._refusal
        if len(self.pipeline) >= MAX_PIPELINED:
            raise too_much_ahead()
        self._enter(ConnectionPhase.ANSWERING)
        super().on_headers_complete()
        self.headers = []  # trailers may follow, and uvicorn would add them to the request's headers
        if self._registry.draining or self._refusal is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ignore a request to upgrade, which ends here with its head. It is parsed again as a plain one."""
        if self.parser.should_upgrade():
            return
        self._silent_bytes = 0
        super().on_message_complete()
        if self.phase is ConnectionPhase.DISCARDING:
            self._rest(self._limits.keep_alive_s)

    # -- the answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        answering = self._output.begin(
            cycle, cast("ASGIApp", app), is_closing=self._is_leaving, close=self._answered_last
        )
        super()._start_asgi_task(cycle, cast("ASGI3Application", answering))

    def on_response_complete(self) -> None:
        """uvicorn goes on although bytes are unsent: its idle clock cuts slow clients off."""
        self._registry.total_requests += 1
        answered, self._running = self._running, None
        if answered is not None:
            answered.body = bytearray()  # uvicorn keeps the last request, and its body may not be read
        if self.phase is not ConnectionPhase.LEAVING:
            came_whole = answered is None or _whole(answered)
            self._output.complete(functools.partial(self._sent, came_whole=came_whole))

    def _sent(self, *, came_whole: bool) -> None:
        """Go on after an answer. `came_whole` says whether its request had come as a whole.

        uvicorn keeps idle connections for whole seconds only. If a request was answered before it had come as
        a whole, uvicorn reads the rest for as long as it comes.
        """
        if self.phase is ConnectionPhase.LEAVING:
            return
        if self._is_last:
            self._end_after(came_whole=came_whole)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._registry.draining:
            self._end_after(came_whole=came_whole)
        elif came_whole:
            self._rest(self._limits.keep_alive_s)
        elif self.expect_100_continue:  # the next bytes may be the body, or another request
            self._linger()
        else:
            self._enter(ConnectionPhase.DISCARDING, LINGER_S, self._close)
        if self._ahead:
            data, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(data)

    def _is_leaving(self) -> bool:
        return self.phase is ConnectionPhase.LEAVING or self.transport.is_closing()

    def _answered_last(self) -> None:
        """Close for a cycle that has to be the last one, or whose application failed."""
        if self.phase is ConnectionPhase.LEAVING:
            return
        if self._running is not None and self._running.response_complete:
            self._is_last = True  # `on_response_complete` follows
        else:
            self._end_after(came_whole=_whole(self._running))

    def _end_after(self, *, came_whole: bool) -> None:
        """Close, but read what the client may still be sending first."""
        if self.phase is ConnectionPhase.LAST or not came_whole:
            self._linger()
        else:
            self._close()

    def _refuse(self, error: GatewayError) -> None:
        """Answer a request that the application must not see, and close the connection.

        uvicorn answers with a 400 in plain text, even in the middle of an answer. Here the answers that are
        under way are finished first; then the connection closes without an answer to the error.
        """
        self._output.flush()
        running = self._running
        if self._output.sending:  # the answer is complete, and the client still reads it
            self._is_last = True
            self._enter(ConnectionPhase.LAST)
            self._ahead.clear()
            self.pipeline.clear()
            return
        if running is not None and _whole(running):
            owed = [running, *(cycle for cycle, _ in reversed(self.pipeline) if _whole(cycle))]
            owed[-1].keep_alive = False  # the connection ends with this answer
            self._enter(ConnectionPhase.LAST)
            self._ahead.clear()
            return
        if self.phase is not ConnectionPhase.DISCARDING and (running is None or not running.response_started):
            self.transport.write(self._registry.refusal(error, self.client))
        self._client_gone()
        self._linger()

    def _hang_up(self) -> None:
        """Close once all bytes are sent. The scripted llama-server imitates a server that died with this."""
        if not self._is_leaving():
            self._client_gone()
            self._close()

    def _head_late(self) -> None:
        self._refuse(header_timeout(self._head_s))

    def _client_gone(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.disconnected = True
            running.message_event.set()
            self._output.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._output.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._output.resumed()

    def _forget_requests(self) -> None:
        """Let go of everything that refers back to this lost connection.

        Otherwise they would keep each other until the next run of the garbage collector, and the bytes of a
        body. A request that still runs is kept by its task.
        """
        self._output.lost()
        self._plain_head = b""
        self.pipeline.clear()
        self.headers = []
        for name in ("cycle", "scope", "parser"):
            setattr(self, name, None)

    # -- phases

    def _enter(
        self, phase: ConnectionPhase, seconds: float = 0.0, otherwise: Callable[[], None] | None = None
    ) -> None:
        """Enter a phase. `otherwise` is called if it is not left within this many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, otherwise) if otherwise else None
        self.phase = phase
        if phase is ConnectionPhase.HEAD:
            return  # it goes on waiting for a request
        if phase is ConnectionPhase.IDLE:
            self._registry.waits(self)
        else:
            self._registry.used(self)

    def _rest(self, seconds: float) -> None:
        self._enter(ConnectionPhase.IDLE, seconds, self._close)

    def _linger(self) -> None:
        """Close this side of the connection, then read and drop bytes that still come.

        The kernel answers unread bytes with a reset, and a reset can overtake the answer (RFC 9112, 9.6).
        """
        self._output.flush()
        self._enter(ConnectionPhase.LEAVING, LINGER_S, self._close)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self) -> None:
        """Close once all bytes are sent, or when that takes too long. uvicorn waits without a limit."""
        self._output.flush()
        self._enter(ConnectionPhase.LEAVING, FLUSH_S, self.transport.abort)
        self.transport.close()


def _whole(cycle: RequestResponseCycle | None) -> bool:
    """Return True if there is such a request and all of it has come."""
    return cycle is not None and not cycle.more_body
