"""The least that an ASGI application can do in front of llama-server. It is here to be measured.

It forwards the body of an answer as it arrives. It has no keys, no admission and no token counts, rewrites
nothing, knows no error but a plain 502, and opens a connection for every request, since llama-server closes
it after each stream.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast
from urllib.parse import urlsplit

import httptools
from starlette.types import Receive, Scope, Send

__all__ = ["app"]

_upstream = urlsplit(os.environ.get("BENCH_UPSTREAM", "http://127.0.0.1:8080"))
_HOST, _PORT = str(_upstream.hostname), _upstream.port or 80
_HEAD = (
    f"%b %b HTTP/1.1\r\nHost: {_HOST}:{_PORT}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
).encode()


class FloorExchange(asyncio.Protocol):
    """The exchange of a request and its answer."""

    def __init__(self, request: bytes) -> None:
        self.status = 0
        self.content_type = b""
        self.pieces: list[bytes] = []
        self.complete = False
        self.closed = False
        self.news = asyncio.Event()
        self._request = request
        self._parser = httptools.HttpResponseParser(self)

    def close(self) -> None:
        self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.news.set()

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.news.set()

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.news.set()

    def on_message_complete(self) -> None:
        self.complete = True
        self.news.set()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    request = await _request(scope, receive)
    loop = asyncio.get_running_loop()
    try:
        _, exchange = await loop.create_connection(lambda: FloorExchange(request), _HOST, _PORT)
    except OSError:
        await _bad_gateway(send)
        return
    leaving = loop.create_task(_close_with_client(receive, exchange))
    try:
        await _answer(exchange, send)
    finally:
        leaving.cancel()
        exchange.close()


async def _request(scope: Scope, receive: Receive) -> bytes:
    """Return the bytes for llama-server, which needs none of the client's headers."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    query = scope["query_string"]
    target = b"%b?%b" % (scope["raw_path"], query) if query else scope["raw_path"]
    return _HEAD % (scope["method"].encode(), target, len(body)) + body


async def _answer(exchange: FloorExchange, send: Send) -> None:
    """Send the answer. If its body ended too early, send no end: uvicorn then closes the connection."""
    await exchange.news.wait()
    if not exchange.status:
        await _bad_gateway(send)
        return
    headers = [(b"content-type", exchange.content_type)]
    await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
    over = False
    while not over:
        await exchange.news.wait()
        exchange.news.clear()
        body = b"".join(exchange.pieces)
        exchange.pieces.clear()
        over = exchange.complete or exchange.closed
        await send({"type": "http.response.body", "body": body, "more_body": not exchange.complete})


async def _close_with_client(receive: Receive, exchange: FloorExchange) -> None:
    """Close the exchange when the client disconnects. uvicorn reports that by `receive` only, never by
    `send`.
    """
    await receive()
    exchange.close()


async def _bad_gateway(send: Send) -> None:
    await send({"type": "http.response.start", "status": 502, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
