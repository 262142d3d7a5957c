"""A client's connection to a scripted llama-server. It answers one request after the other.

It behaves as llama-server's own connections do:

* it is closed behind every stream;
* behind any other answer it stays open, idle for at most 5 s, even behind an error with `Connection: close`;
* it carries at most 100 requests;
* a client that half-closes it counts as gone.

The work for a request goes on when its client leaves, until `ClientChecks` notices.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Final, Protocol, cast

from slotgate.gateway.testing.fake.net.http1 import FramingError, Message, MessageReader
from slotgate.gateway.testing.fake.net.writer import ResponseWriter

__all__ = ["ConnectionHandler", "LlamaConnection"]

IDLE_S: Final = 5.0
MAX_REQUESTS: Final = 100
_BROKEN: Final = (
    b"HTTP/1.1 400 Bad Request\r\nServer: llama.cpp\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ConnectionHandler(Protocol):
    """Answers the requests of a connection."""

    def opened(self, connection: LlamaConnection) -> None: ...

    def closed(self, connection: LlamaConnection) -> None: ...

    async def answer(self, request: Message, writer: ResponseWriter) -> bool:
        """Answer the request. Return True if the connection may carry another request."""
        ...


class LlamaConnection(asyncio.Protocol):
    """The protocol of one connection, and the `ResponseWriter` of its answers."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._reader = MessageReader()
        self._waiting: deque[Message] = deque()
        self._gone = False
        self._answered = 0
        self._idle: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        """Answers the requests that have come. It goes on when the client has left."""

    def __repr__(self) -> str:
        return f"<LlamaConnection {'gone' if self._gone else 'open'}, {self._answered} answered>"

    # -- Line

    @property
    def gone(self) -> bool:
        return self._gone

    def write(self, data: bytes) -> None:
        """Write without waiting for the client to read, because llama-server's slots do not wait either."""
        if not self._gone:
            self._transport.write(data)

    def finish(self) -> None:
        if not self._gone:
            self._transport.close()

    def reset(self) -> None:
        if self._gone:
            return
        held = self._transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def abort(self) -> None:
        """End the connection and its work at once, because the server is gone."""
        if self.task is not None:
            self.task.cancel()
        self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handler.opened(self)
        self._rest()

    def data_received(self, data: bytes) -> None:
        try:
            self._waiting.extend(self._reader.feed(data))
        except (FramingError, ValueError):
            self._transport.write(_BROKEN)
            self._rest()
            return
        if self._reader.expects_continue(data):
            self._transport.write(_CONTINUE)
        if self._waiting and (self.task is None or self.task.done()):
            self._unrest()
            self.task = self._loop.create_task(self._answer_all())

    def eof_received(self) -> bool:
        self._gone = True
        self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._unrest()
        self._handler.closed(self)

    # -- one request after the other

    async def _answer_all(self) -> None:
        while self._waiting and not self._gone:
            request = self._waiting.popleft()
            reusable = await self._handler.answer(request, self)
            self._answered += 1
            if _wants_close(request) or self._answered >= MAX_REQUESTS:
                self.finish()
            if not reusable:
                self._waiting.clear()
                break
        if not self._gone:
            self._rest()

    def _rest(self) -> None:
        self._unrest()
        self._idle = self._loop.call_later(IDLE_S, self.finish)

    def _unrest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()


def _wants_close(request: Message) -> bool:
    old = request.head.start_line.endswith(b"HTTP/1.0")
    return old or (request.head.get(b"connection") or b"").lower() == b"close"
