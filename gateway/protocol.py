"""One client connection: uvicorn's httptools protocol, and what a streaming gateway needs besides.

      accepted
         |
         v    first byte        head whole             answered, nothing more to come
    .-> IDLE -----------> HEAD -----------> ANSWERING ----------------------------------.
    |    |                 |                 |    |  |  answered before it came whole    |
    |    |                 |                 |    |  '------> DISCARDING --its end--------+
    |    |                 |                 |    |               |                       |
    |    |                 |                 |    '-> LAST        |                       |
    |    |                 |                 |          |         |                       |
    |    '-----------------+-----------------+----------+---------'---> LEAVING           |
    '-------------------------------------------------------------------------------------'

Every phase has an end: IDLE `keep_alive_s`, HEAD `header_timeout_s`, DISCARDING and LEAVING limits of their
own; while it is ANSWERING the application has its limits. In LAST, more was pipelined than we care to keep
or something that is not HTTP: the answers that are owed go out, what comes is thrown away.

What uvicorn 0.54 does, and what therefore is different here, stands with each method. Two choices:

* A client that half-closes is gone. A FIN is all that a server ever sees of most clients that leave, and a
  generation that nobody waits for must end; whoever sends a request and shuts down its side gets no answer.
* Bytes behind a request that is being answered are kept and not parsed, and reading goes on: with reading
  paused, the end of the connection would not be noticed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import httptools
import structlog
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.connections import Admittance, Connections
from gateway.errors import CapacityError, ClientError, GatewayError
from gateway.http10 import close_delimited
from gateway.upgrade import without_upgrade

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

__all__ = ["Phase", "Protocol"]

LINGER_S = 5.0
"""How long the rest of a request that was answered already is read over, at most."""
REFUSED_S = 1.0
"""How long a connection that is one too many may take to ask, so that it can be told."""
MAX_PIPELINED = 16
"""Requests of one connection that wait for the answer before them, at most."""
MAX_AHEAD_BYTES = 64 * 1024
"""Bytes kept that came while an answer was under way."""
log = structlog.stdlib.get_logger(__name__)


class Phase(Enum):
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


class Protocol(HttpToolsProtocol):
    def __init__(self, config: Config, connections: Connections) -> None:
        super().__init__(config, connections, app_state={})
        self.phase = Phase.IDLE
        self._all = connections
        self._limits = connections.settings
        self._running: RequestResponseCycle | None = None
        """The request whose answer is under way; those behind it are in uvicorn's `pipeline`."""
        self._ahead = bytearray()
        self._silent_bytes = 0
        """What the parser was fed since it last had something to tell."""
        self._plain_head = b""
        self._refusal: GatewayError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return (
            f"<Protocol {self.phase.value}, {len(self.pipeline)} pipelined, {len(self._ahead)} bytes ahead>"
        )

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """uvicorn has no limit of connections (its `limit_concurrency` judges requests, idle ones too)."""
        super().connection_made(transport)
        admittance = self._all.opened()
        if admittance is Admittance.SERVED:
            self._rest(self._limits.header_timeout_s)
        elif admittance is Admittance.REFUSED:
            message = f"{self._limits.max_connections} connections are open, which is as many as may be"
            self._refusal = CapacityError(503, "too_many_connections", message)
            self._within(REFUSED_S, self._close)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that came last, not the one that is running."""
        self._enter(Phase.LEAVING)
        self._client_gone()
        super().connection_lost(exc)
        self._all.closed()

    def eof_received(self) -> None:
        """The client is gone, now: the transport closes itself only when it is rid of what is unsent."""
        self._enter(Phase.LEAVING)
        self._client_gone()
        self._within(self._limits.keep_alive_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """uvicorn parses whatever comes, and pauses reading behind a request that is pipelined."""
        if self.phase in (Phase.LEAVING, Phase.LAST):
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._whole(self._running):
            self._keep(data)
        else:
            self._feed(data)

    def shutdown(self) -> None:
        """uvicorn closes a connection on which a head is just arriving as if it were idle."""
        if self.phase is Phase.ANSWERING:
            self.cycle.keep_alive = False
        elif self.phase not in (Phase.HEAD, Phase.LAST):
            self._close()

    # -- the parser

    def _feed(self, data: bytes) -> None:
        """uvicorn bounds neither the head, nor trailers, nor the extensions of a chunk."""
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._plain_head + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            if self._silent_bytes > self._limits.max_header_bytes:
                self._refuse(self._too_large())

    def _keep(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > MAX_AHEAD_BYTES:
            self._refuse(_too_many_pipelined())

    def on_message_begin(self) -> None:
        """Each request is given a way to cut its connection: closing waits until all is sent, and a client
        that does not read never takes it."""
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {"slotgate.abort": self.transport.abort}
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
            self._within(self._limits.header_timeout_s, self._head_late)

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.max_header_bytes:
            raise self._too_large()
        if self.parser.should_upgrade():
            self._plain_head = without_upgrade(
                self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
            )
            return
        _check_target(self.url)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _too_many_pipelined()
        self._enter(Phase.ANSWERING)
        super().on_headers_complete()
        self.headers = []  # what comes now are trailers, and uvicorn would add them to the request's headers
        self.flow.resume_reading()
        if self._all.draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)
        if self._whole(self._running):  # a body behind another request
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """llhttp ends a request to upgrade behind its head; it comes again, without the upgrade."""
        if self.parser.should_upgrade():
            return
        self._silent_bytes = 0
        super().on_message_complete()
        if self.phase is Phase.DISCARDING:
            self._rest(self._limits.keep_alive_s)

    # -- the answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        transport = CycleTransport(self.transport.write, self._is_leaving, self._answered_last)
        cycle.transport = cast("asyncio.Transport", transport)
        self._running = cycle
        if cycle.scope["http_version"] in ("0.9", "1.0"):
            app = cast("ASGI3Application", close_delimited(cast("ASGIApp", app), cycle))
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """uvicorn keeps an idle connection for whole seconds, and reads over the rest of a request that was
        answered early for as long as it comes."""
        self._all.total_requests += 1
        answered, self._running = self._running, None
        if self.phase is Phase.LEAVING:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif answered is None or not answered.more_body:
            self._rest(self._limits.keep_alive_s)
        elif self.expect_100_continue:  # what comes next may be the body, or a request in its place
            self._linger()
        else:
            self._enter(Phase.DISCARDING)
            self._within(LINGER_S, self._close)
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            self.data_received(data)

    def _is_leaving(self) -> bool:
        return self.phase is Phase.LEAVING or self.transport.is_closing()

    def _answered_last(self) -> None:
        """A cycle closes the connection: it was asked to, or its application failed."""
        if self.phase is Phase.LEAVING:
            return
        if self.phase is Phase.LAST or not self._whole(self._running):
            self._linger()
        else:
            self._close()

    def _refuse(self, error: GatewayError) -> None:
        """Answer what is no request for the application, and leave. uvicorn answers 400 as plain text, and
        into the middle of an answer that is under way: here those that are owed come first."""
        running = self._running
        if running is not None and not running.more_body:
            owed = [running, *(cycle for cycle, _ in reversed(self.pipeline) if not cycle.more_body)]
            while len(self.pipeline) >= len(owed):
                self.pipeline.popleft()
            owed[-1].keep_alive = False
            self._ahead.clear()
            self._enter(Phase.LAST)
            return
        if self.phase is not Phase.DISCARDING and (running is None or not running.response_started):
            self.transport.write(self._answer(error))
        self._client_gone()
        self._linger()

    def _answer(self, error: GatewayError) -> bytes:
        self._all.refused[error.code] += 1
        request_id = secrets.token_hex(16)
        client = self.client[0] if self.client else None
        log.info("refused", id=request_id, client=client, status=error.status, code=error.code)
        body = error.body()
        headers = [
            *self._all.default_headers,
            (b"content-type", b"application/json"),
            *error.headers(),
            (b"x-request-id", request_id.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])

    # -- phases

    def _enter(self, phase: Phase) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._all.idle.pop(self, None)
        self.phase = phase

    def _within(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """The limit of the phase just entered."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _rest(self, seconds: float) -> None:
        self._enter(Phase.IDLE)
        self._all.idle[self] = None
        self._within(seconds, self._close)

    def _head_late(self) -> None:
        message = f"the request's headers were not complete within {self._limits.header_timeout_s:g} s"
        self._refuse(ClientError("header_timeout", message, status=408, kind="timeout_error"))

    def _linger(self) -> None:
        """Close our side, and read over what still comes: bytes that nobody reads would make the kernel
        reset the connection, and a reset can overtake the answer (RFC 9112, 9.6)."""
        self._enter(Phase.LEAVING)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._within(LINGER_S, self._close)

    def _close(self) -> None:
        """Close once all is sent, or when that takes too long. uvicorn waits for ever."""
        self._enter(Phase.LEAVING)
        self.transport.close()
        self._within(self._limits.keep_alive_s, self.transport.abort)

    def _client_gone(self) -> None:
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        self._running = None
        self.pipeline.clear()
        self._ahead.clear()
        self.flow.resume_writing()

    @staticmethod
    def _whole(cycle: RequestResponseCycle | None) -> bool:
        """Whether there is a request under way and all of it has come."""
        return cycle is not None and not cycle.more_body

    def _too_large(self) -> ClientError:
        message = f"the request's line and headers are larger than {self._limits.max_header_bytes} bytes"
        return ClientError("headers_too_large", message, status=431)


def _reason(error: httptools.HttpParserError) -> GatewayError:
    """Why the parser stopped: a callback of ours refused, or failed, or this is not HTTP."""
    cause = error.__context__
    if isinstance(cause, GatewayError):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("internal error", exc_info=cause)
        return GatewayError(500, "server_error", "internal_error", "the gateway failed to read the request")
    return ClientError("invalid_request", f"this is not a request in HTTP/1.1: {error}")


def _too_many_pipelined() -> ClientError:
    return ClientError("invalid_request", "too much was sent before the answer to the request before it")


def _check_target(url: bytes) -> None:
    """uvicorn fails where the target has no path or one that is not ASCII."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        path = None
    if path is None or not path.isascii():
        raise ClientError("invalid_request", "the request's target is not valid")
