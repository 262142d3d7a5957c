"""A connection of a scripted upstream. It takes requests, plays scripts, and records everything.

Bytes are recorded before they are parsed. The first ending (EOF or reset) counts. When the client closes, a
running script is cancelled and the connection is closed at once.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, cast

import orjson

from tests.support.http1 import FramingError, Head, Message, MessageReader
from tests.support.notation import answer, chunked, error_body
from tests.support.pulse import Pulse
from tests.support.script import AwaitByte, Fin, Flood, Gate, Paced, Rst, Script, Sleep, Stall, Step, Write

_FLOOD_CHUNK = 65536


class ConnectionEnding(Enum):
    """The way in which a connection ended, as the upstream saw it."""

    EOF = "eof"
    RESET = "reset"
    OURS = "closed by the script"


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A received request, and the record of its answer."""

    message: Message
    connection: ScriptedConnection
    received_ns: int
    """`perf_counter_ns` at the last byte of the request."""
    end_offset: int
    """Bytes of the connection up to and including this request."""
    write_ns: list[int] = field(default_factory=list)
    """`perf_counter_ns` just before each write."""
    frame_ns: list[int] = field(default_factory=list)
    """`perf_counter_ns` before each event of a `Paced` step, by its index."""
    finished: bool = False
    """True if the script was played to its end."""

    @property
    def head(self) -> Head:
        return self.message.head

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def raw(self) -> bytes:
        return self.message.raw

    @property
    def method(self) -> str:
        return self.head.start_line.split(b" ")[0].decode()

    @property
    def target(self) -> str:
        return self.head.start_line.split(b" ")[1].decode()

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(self.body)
        return content


class ConnectionOwner(Protocol):
    """The server of a connection."""

    pulse: Pulse

    def received(self, request: ReceivedRequest) -> None: ...

    def wrote(self, request: ReceivedRequest) -> None: ...

    def closed(self, connection: ScriptedConnection) -> None: ...

    def answer(self, request: ReceivedRequest) -> AbstractAsyncContextManager[Script]:
        """Return a context with the script for a request. The context lasts while the script plays."""
        ...


class ScriptedConnection(asyncio.Protocol):
    def __init__(self, owner: ConnectionOwner, *, reading: bool) -> None:
        self.requests: list[ReceivedRequest] = []
        self.received = bytearray()
        """Every byte the client sent."""
        self.written_bytes = 0
        self.ending: ConnectionEnding | None = None
        self.ended_ns: int | None = None
        """`perf_counter_ns` when the client's EOF or reset was seen, or the script closed."""
        self.failure: Exception | None = None
        """The client's broken framing, or an exception of a responder."""
        self.is_open = True
        self._made = False
        """True once the event loop has given it a transport: a turn after the client was accepted."""
        self._owner = owner
        self._reading = reading
        self._reader = MessageReader()
        self._parsed = 0
        self._queue: asyncio.Queue[ReceivedRequest] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"ended: {self.ending}"
        return f"<ScriptedConnection {state}, {len(self.requests)} requests, {self.written_bytes} B sent>"

    @property
    def delivered_bytes(self) -> int:
        """Written bytes that the kernel has taken."""
        return self.written_bytes - (self._transport.get_write_buffer_size() if self.is_open else 0)

    @property
    def writable(self) -> bool:
        """False while the client reads too slowly to go on writing."""
        return self._may_write.is_set()

    async def closed(self, within: float = 2.0) -> ConnectionEnding:
        """Wait until the connection has ended."""
        await self._owner.pulse.until(lambda: not self.is_open, self, within)
        assert self.ending is not None
        return self.ending

    def abort(self) -> None:
        """End the connection and its script at once."""
        self._end(ConnectionEnding.OURS)
        if self._made:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, not the class
        self._made = True
        if self.ending is not None:
            self._transport.abort()
            return
        if not self._reading:
            self._transport.pause_reading()
        self._task = self._loop.create_task(self._serve())
        self._owner.pulse.beat()

    def data_received(self, data: bytes) -> None:
        self.received += data
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except (FramingError, ValueError) as error:
            self.failure = error
            self._transport.write(answer(400, error_body(400, str(error), "invalid_request_error")))
            self._transport.close()
        self._owner.pulse.beat()

    def eof_received(self) -> None:
        self._end(ConnectionEnding.EOF)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionEnding.RESET if exc is not None else ConnectionEnding.OURS)
        self.is_open = False
        self._owner.closed(self)
        self._owner.pulse.beat()

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._owner.pulse.beat()

    def resume_writing(self) -> None:
        self._may_write.set()

    # -- requests and their scripts

    def _take(self, message: Message) -> None:
        self._parsed += len(message.raw)
        request = ReceivedRequest(message, self, time.perf_counter_ns(), self._parsed)
        self.requests.append(request)
        self._owner.received(request)
        self._queue.put_nowait(request)

    def _end(self, ending: ConnectionEnding) -> None:
        if self.ending is None:
            self.ending, self.ended_ns = ending, time.perf_counter_ns()
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            while True:
                request = await self._queue.get()
                async with self._owner.answer(request) as script:
                    for step in script:
                        await self._play(step, request)
                    request.finished = True
                self._owner.pulse.beat()
        except Exception as error:
            self.failure = error
            self._transport.abort()

    async def _play(self, step: Step, request: ReceivedRequest) -> None:
        match step:
            case Write(data):
                await self._write(data, request)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Gate(event):
                await event.wait()
            case AwaitByte():
                more = lambda: len(self.received) > request.end_offset  # noqa: E731
                await self._owner.pulse.until(more, "a byte of the next request", within=None)
            case Paced():
                await self._pace(step, request)
            case Flood(total_bytes, frame):
                chunk = chunked(frame * (_FLOOD_CHUNK // len(frame) + 1))
                for _ in range(-(-total_bytes // len(chunk))):
                    await self._write(chunk, request)
                    await asyncio.sleep(0)
            case Fin():
                self._transport.write_eof()
            case Rst():
                linger_zero = struct.pack("ii", 1, 0)
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger_zero
                )
                self._transport.abort()
            case Stall():
                await asyncio.Event().wait()

    async def _pace(self, step: Paced, request: ReceivedRequest) -> None:
        begin = self._loop.time()
        indices = itertools.count() if step.count is None else range(step.count)
        for index in indices:
            await asyncio.sleep(max(0.0, begin + index / step.rate - self._loop.time()))
            data = chunked(step.frame(index))
            request.frame_ns.append(time.perf_counter_ns())
            await self._write(data, request)

    async def _write(self, data: bytes, request: ReceivedRequest) -> None:
        request.write_ns.append(time.perf_counter_ns())
        self._transport.write(data)
        self.written_bytes += len(data)
        self._owner.wrote(request)
        await self._may_write.wait()
