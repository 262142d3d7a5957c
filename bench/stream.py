"""The client of one chat stream. It does as little work as possible, and the same for every gateway."""

from __future__ import annotations

import asyncio
import re
from array import array
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import cast

import httptools

from bench.chunk import Stamps

__all__ = ["Client", "Tally", "Target", "chat"]

_says = re.compile(rb'"content": ?"[^"]').search


@dataclass(frozen=True, slots=True)
class Target:
    """The address for chats, and their headers."""

    port: int
    headers: tuple[tuple[str, str], ...] = ()


class Tally:
    """The tokens that all streams of a measurement have received."""

    __slots__ = ("latencies_ns", "recording", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.latencies_ns: array[int] = array("q")
        self.recording = False


@dataclass(slots=True)
class StreamExchange:
    """A request and its answer. Both futures fail when the connection does."""

    first_token: asyncio.Future[int]
    """The time of the first token, in nanoseconds of the monotonic clock."""
    over: asyncio.Future[None]
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    """The body of an answer that is not a stream."""


def chat(target: Target, text: str, *, max_tokens: int | None = None, stream: bool = True) -> bytes:
    """Return the bytes of a streaming chat request."""
    limit = f',"max_tokens":{max_tokens}' if max_tokens else ""
    said = f'"messages":[{{"role":"user","content":"{text}"}}]'
    body = f'{{"model":"bench","stream":{str(stream).lower()},{said}{limit}}}'
    return post(target, "/v1/chat/completions", body)


def post(target: Target, path: str, body: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{target.port}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in target.headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


class Client(asyncio.Protocol):
    """A connection to a gateway. It carries one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tally: Tally) -> None:
        self._loop = loop
        self._tally = tally
        self._exchange: StreamExchange | None = None
        self._now = 0
        self.usable = True

    @classmethod
    async def connect(cls, target: Target, tally: Tally) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(loop, tally), "127.0.0.1", target.port)
        return client

    def ask(self, request: bytes) -> StreamExchange:
        self._stamps = Stamps()
        self._parser = httptools.HttpResponseParser(self)
        self._exchange = StreamExchange(self._loop.create_future(), self._loop.create_future())
        self._transport.write(request)
        return self._exchange

    def close(self) -> None:
        self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._now = monotonic_ns()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._exchange is not None:
            self._fail(
                self._exchange, ConnectionError("the connection was closed before the answer was over")
            )

    # -- httptools

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status != 200:
            exchange.body += body
            return
        stamps = self._stamps.feed(body)
        if not stamps:
            if not exchange.first_token.done() and _says(body):  # the text of a real model has no times
                exchange.first_token.set_result(self._now)
            return
        tally = self._tally
        tally.tokens += len(stamps)
        if tally.recording:
            for stamp in stamps:
                tally.latencies_ns.append(self._now - int(stamp))
        if not exchange.first_token.done():
            exchange.first_token.set_result(self._now)

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        self.usable = self._parser.should_keep_alive()
        if exchange.status != 200:
            answer = exchange.body[:200].decode(errors="replace")
            self._fail(exchange, ConnectionError(f"status {exchange.status}: {answer}"))
        if not exchange.over.done():
            exchange.over.set_result(None)
        self._fail(exchange, ConnectionError("an answer without a token"))

    def _fail(self, exchange: StreamExchange, error: Exception) -> None:
        for future in (exchange.first_token, exchange.over):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as seen, since nothing may be waiting for this future
