"""A raw HTTP/1.1 client for streams. The test gets every byte with its time.

Requests are bytes, so HTTP/1.0, pipelining and broken requests can be sent as well. Responses are read
strictly: a truncated body is an error unless the test asked for it (`clean_end`). Every wait has a limit. Its
error shows what had come until then.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import orjson

from tests.support.http1 import BodyReader, Head, parse_head
from tests.support.sse import FrameReader

_READ_BYTES = 65536


def request_bytes(
    method: str,
    target: str,
    *headers: bytes,
    json: object = None,
    body: bytes = b"",
    version: str = "1.1",
) -> bytes:
    """Return a request with host and, for a body, content-length. `headers` are whole lines."""
    lines = [f"{method} {target} HTTP/{version}".encode(), b"Host: 127.0.0.1", *headers]
    if json is not None:
        body = orjson.dumps(json)
        lines.append(b"Content-Type: application/json")
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Frame:
    """A server-sent frame, and the time of the read that completed it."""

    data: bytes
    at_ns: int


class RawClient:
    """A client's connection, for use as `async with await RawClient.connect(url) as client:`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.response: Head | None = None
        """The head of the current response."""
        self.clean_end: bool | None = None
        """True if the body ended properly, False if it was truncated, None before its end."""
        self.received_bytes = 0
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._body: BodyReader | None = None

    def __repr__(self) -> str:
        status = self.response.start_line if self.response else b"no response"
        return f"<RawClient {status!r}, {self.received_bytes} bytes, clean end: {self.clean_end}>"

    @classmethod
    async def connect(cls, url: str, *, receive_buffer: int | None = None) -> Self:
        """Connect to `http://host:port` or `unix:/path`. A small `receive_buffer` fills up soon."""
        if url.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(url.removeprefix("unix:")))
        parts = urlsplit(url)
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
        except BaseException:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    # Sending

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def request(
        self,
        method: str,
        target: str,
        *headers: bytes,
        json: object = None,
        body: bytes = b"",
        within: float = 5.0,
    ) -> Head:
        """Send a request and read the head of its response."""
        await self.send(request_bytes(method, target, *headers, json=json, body=body))
        return await self.head(within)

    async def post(self, target: str, json: object, *headers: bytes) -> Head:
        return await self.request("POST", target, *headers, json=json)

    # Leaving

    def close(self) -> None:
        """Close as a well-behaved client does (FIN, or RST by the kernel if bytes were left unread)."""
        self._writer.close()

    def half_close(self) -> None:
        """Shut down the sending half (FIN) and go on reading."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Reset the connection (RST). Does nothing if it is over already."""
        linger_zero = struct.pack("ii", 1, 0)
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        self._writer.transport.abort()

    def stop_reading(self) -> None:
        """Stop reading from the socket until `resume_reading`."""
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        self._transport().resume_reading()

    # Reading

    async def head(self, within: float = 5.0) -> Head:
        """Return the head of the next response, after skipping the rest of the one before."""
        if self._body is not None and self.clean_end is None:
            await self.body(within)
        async with asyncio.timeout(within):
            while b"\r\n\r\n" not in self._buffer:
                data = await self._read()
                if not data:
                    raise ConnectionResetError(f"EOF before a response, after {self._buffer!r}")
                self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        self.response = parse_head(raw)
        self._body = BodyReader(self.response, until_eof=self.status not in (100, 204, 304))
        self.clean_end = True if self._body.done else None
        return self.response

    @property
    def status(self) -> int:
        assert self.response is not None, "no response was read"
        return int(self.response.start_line.split(b" ")[1])

    async def pieces(self, within: float = 5.0) -> AsyncIterator[bytes]:
        """Yield the body as it comes, without chunk framing. `within` limits each wait."""
        assert self._body is not None, "read the head first"
        while self.clean_end is None:
            data, self._buffer = self._buffer, b""
            if not data:
                async with asyncio.timeout(within):
                    data = await self._read_or_reset()
            piece = self._body.feed(data)
            if not data:
                self.clean_end = self._body.end()
            elif self._body.done:
                self.clean_end, self._buffer = True, self._body.leftover
            if piece:
                yield piece

    async def body(self, within: float = 5.0) -> bytes:
        """Return the rest of the body."""
        return b"".join([piece async for piece in self.pieces(within)])

    async def json(self, within: float = 5.0) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(await self.body(within))
        return content

    async def frames(self, within: float = 5.0) -> AsyncIterator[Frame]:
        """Yield server-sent frames, including comments. A half frame at the end is an error."""
        reader = FrameReader()
        async for piece in self.pieces(within):
            now = time.perf_counter_ns()
            for frame in reader.feed(piece):
                yield Frame(frame, now)
        assert not reader.rest, f"the body ends inside a frame: {reader.rest!r}"

    async def eof(self, within: float = 5.0) -> bool:
        """Wait for the server to close. Return True for EOF without further bytes, False for a reset."""
        try:
            async with asyncio.timeout(within):
                data = await self._read()
        except ConnectionError:
            return False
        assert not data, f"bytes before EOF: {data!r}"
        return True

    async def _read(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        self.received_bytes += len(data)
        return data

    async def _read_or_reset(self) -> bytes:
        try:
            return await self._read()
        except ConnectionError:
            return b""

    def _transport(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._writer.transport)


async def read_stream(
    url: str, target: str, json: object, headers: Sequence[bytes] = (), *, within: float = 5.0
) -> list[Frame]:
    """POST and read a whole stream. It must have status 200 and end properly."""
    async with await RawClient.connect(url) as client:
        await client.request("POST", target, *headers, json=json, within=within)
        assert client.status == 200, await client.body()
        frames = [frame async for frame in client.frames()]
        assert client.clean_end, client
        return frames
