"""Requests to one backend: httpx's transport interface, and streams that are pushed to a sink.

There are two ways to use it:

* `begin(request, sink)` is for streams. It opens a new connection and pushes the response into `sink` as it
  arrives. It does not wait; `sink` is told of every failure. `open` does the same and waits for the
  connection.
* `handle_async_request(request)` is httpx's own interface, for responses that are read as a whole.

Streams never reuse a connection, because llama-server closes it after every stream. Other responses do:
llama-server closes an idle connection after five seconds, so one is kept for less than that. A connection
that the backend has closed meanwhile is not used. If it closes one at the moment of the send, the request is
sent again, once, on a new connection: the backend cannot have begun the work in `STALE_S`. A connection that
is closed later than that is not stale. Then the work may have begun, and the request is not sent again.

A backend on the same machine accepts a connection at once. The request then leaves in the same call that made
it, and the event loop gets the socket while the backend is already working.

The number of connections is not limited here. Leases are the only limit; a second queue would be hidden from
the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import httpx
import uvloop

from slotgate.gateway.upstream.address import BackendAddress
from slotgate.gateway.upstream.connection import UpstreamConnection
from slotgate.gateway.upstream.request import UpstreamRequest
from slotgate.gateway.upstream.response import ResponseBody, transport_error
from slotgate.gateway.upstream.sink import End, Sink

__all__ = ["MAY_SEND_TWICE", "SENT_TWICE", "UpstreamExchange", "UpstreamTransport"]

MAY_SEND_TWICE = "slotgate.may_send_twice"
"""Extension of a request: a function without arguments, which returns False if the request must not be sent
again after its kept connection was closed at the send. Without it, it may."""
SENT_TWICE = "slotgate.sent_twice"
"""Extension of a response whose request was sent a second time."""

IDLE_S = 4.0
"""Seconds for which an idle connection is kept. llama-server closes it after five."""
STALE_S = 0.02
"""A reused connection that is closed so soon after the send was closed before the backend read the request.
The close crosses the request on its way, so it arrives within one round trip."""


class UpstreamExchange:
    """A request, and the connection that carries it (or will, once it is made)."""

    __slots__ = ("_connection",)

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<UpstreamExchange on {self._connection!r}>"

    @property
    def sent(self) -> bool:
        """True if any byte of the request may have reached the backend."""
        return self._connection.sent

    @property
    def failure(self) -> BaseException | None:
        """The reason why there was no connection, if it is known."""
        return self._connection.failure

    def pause(self) -> None:
        """Stop reading, because the consumer's buffer is full."""
        self._connection.pause()

    def resume(self) -> None:
        self._connection.resume()

    def close(self) -> None:
        """Close the connection at once. The sink is told `End.CLOSED` unless the exchange was over."""
        self._connection.close()

    @property
    def closed(self) -> asyncio.Future[None]:
        return self._connection.closed


class UpstreamTransport(httpx.AsyncBaseTransport):
    """The connections to one backend.

    Raises `httpx.ConnectError` and `httpx.ConnectTimeout` when nothing was sent, `httpx.ReadError` when the
    connection ended before the response did, and `httpx.RemoteProtocolError` when the response was not HTTP.
    """

    def __init__(
        self,
        address: BackendAddress,
        *,
        connect_timeout_s: float,
        ssl_context: ssl.SSLContext | None = None,
        keep_idle: bool = True,
    ) -> None:
        self._address = address
        self.connect_timeout_s = connect_timeout_s
        self._ssl = (ssl_context or ssl.create_default_context()) if address.tls else None
        self._keep_idle = keep_idle
        self._connections: set[UpstreamConnection] = set()
        self._idle: dict[UpstreamConnection, tuple[float, asyncio.Handle]] = {}
        """Reusable connection -> the time until which it may be used, and the timer that closes it then."""

    def __repr__(self) -> str:
        return f"<UpstreamTransport {len(self._connections)} connections, {len(self._idle)} idle>"

    @property
    def connections(self) -> int:
        """The number of open sockets, idle ones included."""
        return len(self._connections)

    @property
    def idle(self) -> int:
        """The number of connections that can be reused."""
        return len(self._idle)

    def heard(self) -> bool:
        """Return True if a byte has come on any open connection since the last call."""
        heard = [connection for connection in self._connections if connection.heard]
        for connection in heard:
            connection.heard = False
        return bool(heard)

    def move_to(self, address: BackendAddress) -> None:
        """Connect to this address from now on. Open connections are left to end by themselves."""
        self._address = address

    def begin(self, request: UpstreamRequest, sink: Sink) -> UpstreamExchange:
        """Send a request on a new connection. `sink` is called after this has returned, never within it."""
        return UpstreamExchange(self._begun(request, sink))

    async def open(self, request: UpstreamRequest, sink: Sink) -> UpstreamExchange:
        """Do as `begin`, and return when the connection is made. Raises if it cannot be made.

        By then `sink` may already have been told a part of the response, or all of it.
        """
        connection = self._begun(request, sink)
        try:
            if not await connection.connected():
                raise transport_error(End.UNREACHABLE, connection)
        except BaseException:
            connection.close()
            raise
        return UpstreamExchange(connection)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop, kept = asyncio.get_running_loop(), self._take_idle()
        if kept is None:
            return await self._respond(request, UpstreamConnection(loop))
        with contextlib.suppress(_StaleConnection):
            return await self._respond(request, kept)
        may_send_twice = request.extensions.get(MAY_SEND_TWICE)
        if may_send_twice is not None and not may_send_twice():
            raise httpx.ReadError("the backend closed a kept connection at the send", request=request)
        try:
            response = await self._respond(request, UpstreamConnection(loop))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # The backend is gone, and the request may be the reason, because it was sent. So this is no
            # connect error, which would allow another backend to be tried.
            raise httpx.ReadError(
                "the backend closed a kept connection and is gone", request=request
            ) from error
        response.extensions[SENT_TWICE] = True
        return response

    async def aclose(self) -> None:
        """Close every connection. This takes a second at most, in which the sockets close."""
        closing = [connection.closed for connection in self._connections]
        for connection in list(self._connections):
            connection.close()
        for _, timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        if closing:
            await asyncio.wait(closing, timeout=1.0)

    async def _respond(self, request: httpx.Request, connection: UpstreamConnection) -> httpx.Response:
        reused = connection.exchanges > 0
        body = ResponseBody(connection, keep=self._keep)
        upstream_request = UpstreamRequest.of(request)
        sent_at = asyncio.get_running_loop().time()
        connection.send(upstream_request.head, upstream_request.body, body)
        if not reused:
            self._dial(connection)
        try:
            started = await body.started
        except BaseException:
            connection.close()
            raise
        if started is None:
            assert body.end is not None
            closed_at_once = asyncio.get_running_loop().time() - sent_at < STALE_S
            cut_short = body.end is End.CUT_SHORT and not connection.received_bytes
            if reused and cut_short and (closed_at_once or not connection.sent):
                raise _StaleConnection
            raise transport_error(body.end, connection)
        status, headers = started
        return httpx.Response(status, headers=headers, stream=body, extensions={"http_version": b"HTTP/1.1"})

    # -- connecting

    def _begun(self, request: UpstreamRequest, sink: Sink) -> UpstreamConnection:
        connection = UpstreamConnection(asyncio.get_running_loop())
        connection.send(request.head, request.body, sink)
        self._dial(connection)
        return connection

    def _dial(self, connection: UpstreamConnection) -> None:
        """Connect to the backend, for a request that waits in `connection`."""
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._forget(connection))
        loop, local = asyncio.get_running_loop(), self._address.local
        # Only uvloop: another event loop may use another network, or keep the socket object as the owner of
        # the file descriptor.
        sent = local is not None and isinstance(loop, uvloop.Loop) and _sent_at_once(connection, *local)
        making = self._adopt(connection) if sent else self._connect(connection)
        connection.made_by(loop.create_task(making, name="upstream dial"))

    async def _adopt(self, connection: UpstreamConnection) -> None:
        """Give a connected socket to the event loop.

        uvloop closes the descriptor from then on. It releases the Python object too late if the connection is
        lost at once: by then the number may belong to another socket, which the object would close. Therefore
        the object is detached.
        """
        loop, taken = asyncio.get_running_loop(), connection.take_socket()
        try:
            if taken.family == socket.AF_UNIX:
                await loop.create_unix_connection(lambda: connection, sock=taken)
            else:
                await loop.create_connection(lambda: connection, sock=taken)
        finally:
            taken.detach()

    async def _connect(self, connection: UpstreamConnection) -> None:
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                if address.unix_socket is not None:
                    await loop.create_unix_connection(lambda: connection, address.unix_socket)
                else:
                    host, port = address.host, address.port
                    await loop.create_connection(lambda: connection, host, port, ssl=self._ssl)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {self.connect_timeout_s} s") from error

    # -- idle connections

    def _take_idle(self) -> UpstreamConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, (until, timer) = self._idle.popitem()
            timer.cancel()
            if connection.reusable and now < until and not connection.has_unread_input:
                return connection
            connection.close()
        return None

    def _keep(self, connection: UpstreamConnection) -> None:
        """Keep a connection for reuse after a complete exchange, or close it if this transport keeps none."""
        if not self._keep_idle:
            connection.close()
        elif connection.reusable:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(IDLE_S, self._expire, connection)
            self._idle[connection] = loop.time() + IDLE_S, timer

    def _forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that is closed, also if the backend closed it while it was kept."""
        self._connections.discard(connection)
        kept = self._idle.pop(connection, None)
        if kept is not None:
            kept[1].cancel()

    def _expire(self, connection: UpstreamConnection) -> None:
        del self._idle[connection]
        connection.close()


class _StaleConnection(Exception):
    """A reused connection was closed before the backend can have begun the work."""


def _sent_at_once(
    connection: UpstreamConnection, family: socket.AddressFamily, address: str | tuple[str, int]
) -> bool:
    """Send the waiting request over a new socket without the event loop. Return False if that is impossible.

    Linux completes a connect within the machine in the call itself, although the call says that it has only
    begun. An error here is not reported: the ordinary attempt that follows meets the same one.
    """
    try:
        sending = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return False
    try:
        sending.setblocking(False)
        sending.connect_ex(address)
        connection.send_by(sending)
    except OSError:
        sending.close()
        return False
    return True
