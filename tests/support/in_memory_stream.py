"""A stream in memory: from the upstream's read callback to the writes on its client's socket.

Everything between the two sockets is the gateway's own code. The objects that replace the sockets keep or
count the bytes that they get. A test can make the client slow, or let its connection fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

import anyio
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from slotgate.admission import Demand, Lease
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import ChatDialect, FrameOptions
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.disconnect import ClientWatch
from slotgate.gateway.server.chunk_writer import ChunkWriter
from slotgate.gateway.streaming.buffer_budget import BufferBudget
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.streaming.relay import Relay
from slotgate.gateway.upstream import UpstreamExchange, UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.connection import UpstreamConnection
from slotgate.gateway.upstream.sink import Sink

__all__ = ["CHUNKED", "InMemoryClient", "InMemoryStream"]

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class InMemoryStream:
    """Use with `async with`. Belongs to the running event loop."""

    def __init__(
        self,
        *,
        keep: bool = False,
        direct: bool = True,
        taken: Callable[[bytes], object] | None = None,
        client: type[InMemoryClient] | None = None,
    ) -> None:
        """`keep`: keep the bytes that the client gets. `direct`: offer the direct writer to the stream."""
        loop = asyncio.get_running_loop()
        self.client = (client or InMemoryClient)(keep=keep, taken=taken)
        signs: list[str] = []
        self.signs = signs
        """The calls of the relay's observers."""
        self.token_usage = TokenUsage()
        self._scope = anyio.CancelScope()
        self.watch = ClientWatch(self._scope)
        self.out = Downstream(
            self.client.send,
            loop,
            self.watch,
            headers=list,
            buffer_limit=1 << 20,
            budget=BufferBudget(1 << 20),
            tenant="t",
            merge=True,
            writer=self.client.writer if direct else None,
        )
        dialect = ChatDialect(Identity("chatcmpl-1", 1, "public"), self.token_usage, FrameOptions())
        self.frames = Frames(dialect, self.out, self.token_usage, loop.time)
        self.relay = Relay(
            Lease(
                Demand("t", "public"),
                pool_name="backend",
                clock=loop.time,
                on_release=lambda _: None,
            ),
            self.frames,
            self.out,
            RequestContext(id="1", began_at=0.0),
            grace_s=1.0,
            scrub=bytes,
            loop=loop,
            on_answer=lambda: signs.append("answer"),
            on_first_event=lambda: signs.append("first event"),
        )
        self._backend = _InMemoryBackend(loop)
        self.connection = self._backend.connection
        self.read = self.connection.data_received
        """The event loop calls this when bytes of the backend have come."""
        self._loop = loop

    def __repr__(self) -> str:
        return f"<InMemoryStream {self.relay!r}>"

    async def __aenter__(self) -> Self:
        self.relay.start(cast("UpstreamTransport", self._backend), UpstreamRequest(b"", ()))
        self.pump: asyncio.Task[None] = self._loop.create_task(self._pump())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.relay.close()
        self.out.wake()
        if kind is not None:
            self.pump.cancel()
        elif not self.pump.done():
            await self.pump

    async def _pump(self) -> None:
        with self._scope:
            await self.out.pump(lambda: self.relay.over, source=self.relay)

    async def settle(self) -> None:
        """Let the request's task do what a read has left for it."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class InMemoryClient:
    """The client and its connection, with the attributes of uvicorn that `ChunkWriter` reads."""

    def __init__(self, *, keep: bool, taken: Callable[[bytes], object] | None = None) -> None:
        """`taken` gets the direct writes, and then they are neither kept nor counted here."""
        self.write_paused = False
        self.disconnected = False
        self.response_complete = False
        self.chunked_encoding = True
        self.error: Exception | None = None
        """The error that the next write raises."""
        self.pieces = 0
        self.sent = 0
        """The number of pieces that came by `send`."""
        self.kept: list[bytes] | None = [] if keep else None
        """The chunks, each with its size line."""
        self._room = asyncio.Event()
        self._room.set()
        self.writer = ChunkWriter(
            cast("RequestResponseCycle", self),
            cast("FlowControl", self),
            cast("Callable[[bytes], None]", taken or self._transport_write),
        )

    def pause(self) -> None:
        """Fall behind: `send` waits from now on."""
        self._room.clear()
        self.write_paused = True
        self.writer.judge()

    def resume(self) -> None:
        self._room.set()
        self.write_paused = False
        self.writer.judge()

    def leave(self) -> None:
        self.disconnected = True
        self.writer.judge()

    @property
    def body(self) -> bytes:
        """The whole body, without chunk framing."""
        return b"".join(map(_unchunked, self.kept or ()))

    async def send(self, message: Message) -> None:
        await self._room.wait()
        body = message.get("body", b"")
        if body:
            self.sent += 1
            self._took(b"%x\r\n%b\r\n" % (len(body), body))

    def _transport_write(self, chunk: bytes) -> None:
        if self.error is not None:
            raise self.error
        self._took(chunk)

    def _took(self, chunk: bytes) -> None:
        self.pieces += 1
        if self.kept is not None:
            self.kept.append(chunk)


def _unchunked(chunk: bytes) -> bytes:
    size, _, rest = chunk.partition(b"\r\n")
    piece = rest[: int(size, 16)]
    assert chunk == b"%x\r\n%b\r\n" % (len(piece), piece), f"not one chunk: {chunk!r}"
    return piece


class _InMemoryBackend:
    """An upstream transport. A test makes its connection read by calling `data_received`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = UpstreamConnection(loop)
        self.connection.connection_made(_Socket())

    def begin(self, _: UpstreamRequest, sink: Sink) -> UpstreamExchange:
        self.connection.send(b"", (), sink)
        return UpstreamExchange(self.connection)


class _Socket(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
