"""A chat stream without sockets, tasks or an event loop: upstream bytes go in, client bytes come out.

The test steps `send` itself, so it decides when the client is behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import orjson
from starlette.types import Message

from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import ChatDialect, Dialect, FrameOptions
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.streaming.buffer_budget import BufferBudget
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.frames import Frames
from tests.support.sse import FrameReader, data_of

OURS = Identity("chatcmpl-ours", 1700000000, "public")
Json = dict[str, Any]


class ChatStream:
    def __init__(
        self,
        options: FrameOptions | None = None,
        *,
        merge: bool = True,
        dialect: type[Dialect] = ChatDialect,
    ) -> None:
        self.now = 100.0
        self.body = b""
        """The bytes that the client has read."""
        self.token_usage = TokenUsage()
        loop = cast("asyncio.AbstractEventLoop", self)
        self.out = Downstream(
            self._send,
            loop,
            _ReadingClient(),
            headers=list,
            buffer_limit=1 << 20,
            budget=BufferBudget(1 << 20),
            tenant="team-a",
            merge=merge,
        )
        self.frames = Frames(
            dialect(OURS, self.token_usage, options or FrameOptions()), self.out, self.token_usage, self.time
        )
        self._stalled = False

    def time(self) -> float:
        return self.now

    def feed(self, *bodies: bytes) -> None:
        for body in bodies:
            self.frames.feed(body)
            self.frames.learn()

    @contextmanager
    def client_behind(self) -> Iterator[None]:
        """Keep `send` from returning until the block ends."""
        assert self.out.unread, "put something first"
        self._stalled = True
        sending = self.out.pump(lambda: True)
        sending.send(None)
        yield
        self._stalled = False
        _finish(sending)

    def read(self) -> list[bytes]:
        """All frames for the client, including those that wait."""
        _finish(self.out.pump(lambda: True))
        reader = FrameReader()
        frames = reader.feed(self.body)
        assert not reader.rest, f"half a frame at the end: {reader.rest!r}"
        return frames

    def chunks(self) -> list[Json]:
        """All frames for the client that hold JSON, parsed."""
        return [orjson.loads(data_of(frame)) for frame in self.read() if frame.startswith(b"data: {")]

    def text(self, kind: str = "content", index: int = 0) -> str:
        """Return the text of one kind and choice, as the client assembles it."""
        choices = [choice for chunk in self.chunks() for choice in chunk["choices"]]
        deltas = [choice["delta"] for choice in choices if choice["index"] == index]
        return "".join(delta.get(kind) or "" for delta in deltas)

    async def _send(self, message: Message) -> None:
        self.body += message.get("body", b"")
        if self._stalled:
            await _Pause()


class _ReadingClient:
    """Receive for a client that never disconnects."""

    stopped = False

    def stall(self) -> None:
        raise AssertionError("the buffers of this stream have no limit")


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _finish(work: Coroutine[Any, Any, None]) -> None:
    try:
        while True:
            work.send(None)
    except StopIteration:
        return
