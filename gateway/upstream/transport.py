"""Requests to one backend: httpx's transport interface over connections that push.

Ways to use it:

* `begin(outgoing, sink)` for streams: a new connection, whose response is pushed into `sink` as it comes.
  It does not wait, and `sink` hears of every failure; `open` is the same for whoever wants to wait.
* `handle_async_request(request)`, httpx's own interface, for answers that are read whole.

llama-server closes the connection after every stream, so streams never reuse one. Other answers do: an idle
connection is kept for less than the five seconds after which llama-server closes it, and when a reused
one turns out to be stale (closed with no byte of a response) the request is sent once more, on a new one.

A backend on the same machine takes a connection at once: the request then leaves in the very step in which it
was made, and the event loop gets the socket while the backend works already.

There is no limit on connections here: leases are the only limit, and a second queue would hide from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import httpx
import uvloop

from slotgate.gateway.upstream.connection import End, Headers, Sink, UpstreamConnection

__all__ = ["Address", "Exchange", "Outgoing", "UpstreamTransport"]

IDLE_S = 4.0


Near = tuple[socket.AddressFamily, str | tuple[str, int]]
"""Family and address of a plain socket on the same machine, where connecting takes no time."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a backend listens: a host and port, or a Unix socket."""

    host: str
    port: int
    tls: bool = False
    unix_socket: str | None = None
    near: Near | None = None

    @classmethod
    def of(cls, url: httpx.URL, unix_socket: str | None) -> Address:
        tls = url.scheme == "https"
        port = url.port or (443 if tls else 80)
        near = _loopback(url.host, port) if not tls else None
        if unix_socket is not None:
            near = socket.AF_UNIX, unix_socket
        return cls(url.host, port, tls, unix_socket, near)


def _loopback(host: str, port: int) -> Near | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return (family, (host, port)) if address.is_loopback else None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it goes over the wire. A form of its own: making an `httpx.Request` takes longer than the
    rest of sending it."""

    head: bytes = field(repr=False)
    """Request line and headers, with the empty line at their end: the backend's key is among them."""
    body: Sequence[bytes | memoryview] = field(repr=False)

    @classmethod
    def of(cls, request: httpx.Request) -> Outgoing:
        """httpx has set host and content-length; the body is its extension `body`, else its content."""
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%s: %s" % pair for pair in request.headers.raw]
        body: Sequence[bytes | memoryview] | None = request.extensions.get("body")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        return cls(head, (request.content,) if body is None else body)


class Exchange:
    """A request, and the connection that carries it or is to carry it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<Exchange on {self._connection!r}>"

    @property
    def sent(self) -> bool:
        """Whether anything of the request may have reached the backend."""
        return self._connection.sent

    @property
    def failure(self) -> BaseException | None:
        """Why there was no connection, where that is known."""
        return self._connection.failure

    def pause(self) -> None:
        """Stop reading: the consumer's buffer is full."""
        self._connection.pause()

    def resume(self) -> None:
        self._connection.resume()

    def close(self) -> None:
        """Close the connection at once. The sink hears `End.CLOSED` unless the exchange was over."""
        self._connection.close()

    @property
    def closed(self) -> asyncio.Future[None]:
        return self._connection.closed


class UpstreamTransport(httpx.AsyncBaseTransport):
    """For one backend.

    Raises `httpx.ConnectError` and `httpx.ConnectTimeout` when nothing was sent, `httpx.ReadError` when the
    connection ended before the response did, `httpx.RemoteProtocolError` when what came was no HTTP.
    """

    def __init__(
        self,
        address: Address,
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
        """What may be used again: until when, and the timer that ends it then."""

    def __repr__(self) -> str:
        return f"<UpstreamTransport {len(self._connections)} connections, {len(self._idle)} idle>"

    @property
    def connections(self) -> int:
        """Sockets that are open, idle ones included."""
        return len(self._connections)

    @property
    def idle(self) -> int:
        """Connections that may be used again."""
        return len(self._idle)

    def heard(self) -> bool:
        """Whether anything has come, on a connection that is open, since this was asked last."""
        heard = [connection for connection in self._connections if connection.heard]
        for connection in heard:
            connection.heard = False
        return bool(heard)

    def move_to(self, address: Address) -> None:
        """New connections go there; those that are open end by themselves."""
        self._address = address

    def begin(self, outgoing: Outgoing, sink: Sink) -> Exchange:
        """Send on a new connection. All that comes of it goes to `sink`, and later than this call."""
        return Exchange(self._begun(outgoing, sink))

    async def open(self, outgoing: Outgoing, sink: Sink) -> Exchange:
        """The same; returns when there is a connection, and raises if there is none. By then `sink` may have
        been told something, or all."""
        connection = self._begun(outgoing, sink)
        try:
            if not await connection.connected():
                raise _failure(End.UNREACHABLE, connection)
        except BaseException:
            connection.close()
            raise
        return Exchange(connection)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self._take_idle()
        if connection is not None:
            with contextlib.suppress(_Stale):
                return await self._answer(request, connection)
        return await self._answer(request, UpstreamConnection(asyncio.get_running_loop()))

    async def aclose(self) -> None:
        """Close every connection. Bounded: nothing is waited for but the sockets' own end."""
        closing = [connection.closed for connection in self._connections]
        for connection in list(self._connections):
            connection.close()
        for _, timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        if closing:
            await asyncio.wait(closing, timeout=1.0)

    async def _answer(self, request: httpx.Request, connection: UpstreamConnection) -> httpx.Response:
        reused = connection.exchanges > 0
        body = _Body(self, connection)
        outgoing = Outgoing.of(request)
        connection.send(outgoing.head, outgoing.body, body)
        if not reused:
            self._dial(connection)
        try:
            status, headers = await body.started
        except httpx.TransportError as error:
            if reused and body.end is End.CUT_SHORT and not connection.received_bytes:
                raise _Stale from error
            error.request = request
            raise
        except BaseException:
            connection.close()
            raise
        return httpx.Response(status, headers=headers, stream=body, extensions={"http_version": b"HTTP/1.1"})

    # -- connecting

    def _begun(self, outgoing: Outgoing, sink: Sink) -> UpstreamConnection:
        connection = UpstreamConnection(asyncio.get_running_loop())
        connection.send(outgoing.head, outgoing.body, sink)
        self._dial(connection)
        return connection

    def _dial(self, connection: UpstreamConnection) -> None:
        """Make a connection for what it has to send."""
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        loop, near = asyncio.get_running_loop(), self._address.near
        # Other loops may have a network of their own, or keep the socket object as the owner of the socket.
        at_once = near is not None and isinstance(loop, uvloop.Loop) and _sent_at_once(connection, *near)
        making = self._adopt(connection) if at_once else self._connect(connection)
        connection.made_by(loop.create_task(making, name="upstream dial"))

    async def _adopt(self, connection: UpstreamConnection) -> None:
        """Give the event loop a socket that is connected.

        From then on uvloop closes the descriptor. It lets go of the Python object too late for a connection
        that is lost at once, and whoever has the same number then would lose it with the object.
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

    # -- connections that are kept

    def _take_idle(self) -> UpstreamConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, (until, timer) = self._idle.popitem()
            timer.cancel()
            if connection.reusable and now < until:
                return connection
            connection.close()
        return None

    def keep(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose exchange is complete, if it may be used again; else close it."""
        if not self._keep_idle:
            connection.close()
        elif connection.reusable:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(IDLE_S, self._expire, connection)
            self._idle[connection] = loop.time() + IDLE_S, timer

    def _expire(self, connection: UpstreamConnection) -> None:
        del self._idle[connection]
        connection.close()


class _Stale(Exception):
    """A reused connection was closed before a byte of the response came."""


class _Body(httpx.AsyncByteStream):
    """The sink of an answer that is read whole, and httpx's view of its body."""

    def __init__(self, transport: UpstreamTransport, connection: UpstreamConnection) -> None:
        self.started: asyncio.Future[tuple[int, Headers]] = asyncio.get_running_loop().create_future()
        self._transport = transport
        self._connection = connection
        self._pieces: list[bytes] = []
        self.end: End | None = None
        self._changed = asyncio.Event()

    def head(self, status: int, headers: Headers) -> None:
        if not self.started.done():
            self.started.set_result((status, headers))

    def body(self, data: bytes) -> None:
        self._pieces.append(data)

    def read_over(self) -> None:
        self._changed.set()

    def ended(self, end: End) -> None:
        self.end = end
        self._changed.set()
        if end is End.COMPLETE:
            self._transport.keep(self._connection)
        if not self.started.done():
            self.started.set_exception(_failure(end, self._connection))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            if self._pieces:
                pieces, self._pieces = self._pieces, []
                yield b"".join(pieces)
            elif self.end is None:
                self._changed.clear()
                await self._changed.wait()
            elif self.end is End.COMPLETE:
                return
            else:
                raise _failure(self.end, self._connection)

    async def aclose(self) -> None:
        if self.end is not End.COMPLETE:
            self._connection.close()


def _sent_at_once(
    connection: UpstreamConnection, family: socket.AddressFamily, address: str | tuple[str, int]
) -> bool:
    """Send what waits for the connection by a socket of its own; False if that cannot be done at once.

    Linux connects within the machine in the call that asks for it, although it says that it has only begun.
    Whatever goes wrong goes wrong again for whoever waits.
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


def _failure(end: End, connection: UpstreamConnection) -> httpx.TransportError:
    if end is End.UNREACHABLE:
        kind = httpx.ConnectTimeout if isinstance(connection.failure, TimeoutError) else httpx.ConnectError
        error = kind(str(connection.failure))
        error.__cause__ = connection.failure
        return error
    broken = end is End.BROKEN
    return (httpx.RemoteProtocolError if broken else httpx.ReadError)(f"response {end.value}")
