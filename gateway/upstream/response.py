"""The body of a response that is read as a whole, through httpx."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx

from slotgate.gateway.upstream.connection import UpstreamConnection
from slotgate.gateway.upstream.sink import End, Headers

__all__ = ["ResponseBody", "transport_error"]


class ResponseBody(httpx.AsyncByteStream):
    """Receives one response from its connection, and gives its body to httpx."""

    def __init__(self, connection: UpstreamConnection, *, keep: Callable[[UpstreamConnection], None]) -> None:
        """`keep` is called with the connection when the response is complete."""
        self.started: asyncio.Future[tuple[int, Headers] | None] = asyncio.get_running_loop().create_future()
        """Status and headers, or None if none come. It holds no error: the error's traceback would hold this
        object, and the two would keep the request's body alive."""
        self.end: End | None = None
        """The way in which the exchange ended, or None until it is over."""
        self._connection = connection
        self._keep = keep
        self._pieces: list[bytes] = []
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
            self._keep(self._connection)
        if not self.started.done():
            self.started.set_result(None)

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
                raise transport_error(self.end, self._connection)

    async def aclose(self) -> None:
        if self.end is not End.COMPLETE:
            self._connection.close()


def transport_error(end: End, connection: UpstreamConnection) -> httpx.TransportError:
    """Return the httpx error that stands for this end of an exchange."""
    if end is End.UNREACHABLE:
        kind = httpx.ConnectTimeout if isinstance(connection.failure, TimeoutError) else httpx.ConnectError
        error = kind(str(connection.failure))
        error.__cause__ = connection.failure
        return error
    broken = end is End.BROKEN
    return (httpx.RemoteProtocolError if broken else httpx.ReadError)(f"response {end.value}")
