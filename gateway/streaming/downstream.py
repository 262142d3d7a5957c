"""The client's side of a streaming response: a bounded buffer of whole frames, and the one task that sends.

Callbacks put frames into the buffer as the upstream makes them, and never wait for the client. The request's
own task runs `pump`, which sends the waiting frames and then sleeps. While it sleeps, `hand_over` sends from
within the callback that put the frames: it runs the one step of `send` that writes to the socket. If that
step would wait, because the client is slow, the task is woken to do the waiting. So a token costs no switch
between tasks. If the server offers a direct write (`slotgate.write`), that replaces the step.

While a `send` has not returned, the client is behind. Plain text deltas of the same template are then merged
into one frame, and the source is paused when more than `buffer_limit` bytes are unread.

    OPEN --something put--> COMMITTED --last frame put--> CLOSING --end of the body sent--> COMPLETE
                               ^                             |
                               '--- send of the last frame failed

Until something is put, the response can still get any status. After that its status is 200 and its body an
event stream. On the path of a frame, nothing but `send` is awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Protocol, cast

from starlette.types import Send

from slotgate.gateway.http.eager import Continued
from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.streaming.buffer_budget import GUARANTEED_BYTES, BufferBudget
from slotgate.gateway.streaming.direct_writer import DirectWriter
from slotgate.gateway.streaming.template import Template

__all__ = ["Downstream", "DownstreamPhase", "StreamClient", "StreamSource"]

_MAX_SEND_BYTES = 64 * 1024
"""The size up to which waiting frames are joined for one `send`, so that it does not flood the transport."""
_MAX_MERGED_BYTES = 16 * 1024
"""The text of a merged frame is limited, because clients read whole lines into memory."""
Sending = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]


class DownstreamPhase(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    CLOSING = "closing"
    COMPLETE = "complete"


class StreamClient(Protocol):
    """The client of the request; a `ClientWatch` is one."""

    @property
    def stopped(self) -> bool:
        """True once nothing more may be sent."""

    def stall(self) -> None:
        """End the request, because its client does not read."""


class StreamSource(Protocol):
    """The origin of the frames, which can be told to wait."""

    def pause(self) -> None:
        """Stop reading: the buffer is full."""

    def resume(self) -> None:
        """Read again: at least half of the buffer is free."""


class Downstream:
    def __init__(
        self,
        send: Send,
        loop: asyncio.AbstractEventLoop,
        client: StreamClient,
        *,
        headers: Callable[[], Headers],
        buffer_limit: int,
        budget: BufferBudget,
        tenant: str,
        merge: bool,
        writer: DirectWriter | None = None,
    ) -> None:
        """`writer` is given if the server offers direct writes. It is open only while this buffer is empty,
        so that a direct write cannot reorder frames."""
        # The response.
        self.phase = DownstreamPhase.OPEN
        self.tenant = tenant
        self.writer = writer
        self._client = client
        self._headers: Callable[[], Headers] | None = headers
        """Makes the headers; None once they have been sent."""

        # The buffer.
        self.unread = 0
        """Bytes put and not yet handed to `send`."""
        self._limit = buffer_limit
        self._budget = budget
        self._frames: deque[bytes] = deque()
        self._merge = merge
        self._merged_template: Template | None = None
        """The template of the last frame in the buffer, while deltas may still be merged into it."""
        self._merged_text = bytearray()
        self._source: StreamSource | None = None
        """Set while `pump` runs for it."""
        self._source_paused = False

        # The task that sends.
        self.sending_since: float | None = None
        """The time at which the `send` that is under way began."""
        self._send: Sending = cast("Sending", send)
        self._loop = loop
        self._blocked: Continued[None] | None = None
        """A `send` that a callback began and that has to wait."""
        self._waiter: asyncio.Future[None] | None = None
        """Set while the task sleeps."""
        self._failure: Exception | None = None
        """An error of a callback, which `pump` is going to raise."""

    def __repr__(self) -> str:
        return f"<Downstream {self.phase.value} {self.unread} bytes unread>"

    @property
    def committed(self) -> bool:
        """True once the status can no longer be chosen."""
        return self.phase is not DownstreamPhase.OPEN

    @property
    def closing(self) -> bool:
        """True once the last frame has been put."""
        return self.phase in (DownstreamPhase.CLOSING, DownstreamPhase.COMPLETE)

    @property
    def complete(self) -> bool:
        """True once the end of the body has been handed to `send`."""
        return self.phase is DownstreamPhase.COMPLETE

    @property
    def stalled(self) -> bool:
        """True while a `send` is under way, which the client delays."""
        return self.sending_since is not None

    # -- called from callbacks

    def put(self, frame: bytes) -> None:
        """Add one or more whole frames."""
        if self._merged_template is not None:
            self._close_merged()
        self._frames.append(frame)
        self._grew(len(frame))

    def delta(self, template: Template, text: bytes) -> None:
        """Add one plain text delta.

        If the last frame still waits and has the same template, they are merged.
        """
        if self.sending_since is None or not self._merge:
            self.put(template.frame(text))
            return
        if template is not self._merged_template or len(self._merged_text) > _MAX_MERGED_BYTES:
            self._close_merged()
            self._merged_template = template
            self.unread += len(template.prefix) + len(template.suffix)
        self._merged_text += text
        self._grew(len(text))

    def close(self, last: bytes = b"") -> None:
        """Add the last frame. A second call adds nothing, unless sending the first one's frame failed."""
        if last and not self.closing:
            self.put(last)
        if self.phase is DownstreamPhase.COMMITTED:
            self.phase = DownstreamPhase.CLOSING
        self._shut()
        self.wake()

    def cancel(self) -> None:
        """End the stream, because all streams together hold too much and its client does not read."""
        self._client.stall()

    def discard(self) -> None:
        """Forget unread frames, and give their memory back to the budget."""
        self._budget.release(self)
        self._frames.clear()
        self._merged_template = None
        self._merged_text.clear()
        self.unread = 0

    def hand_over(self) -> None:
        """Send the frames now if the request's task sleeps; otherwise the task sends them.

        The step of `send` runs outside any task here, so it may only do what a socket write needs. It is
        never the last step of the body: the end of the body is left to the task.
        """
        waiter = self._waiter
        if not self.unread or waiter is None or waiter.done():
            return
        body = self._take()
        writer = self.writer
        if self._headers is None and writer is not None and writer.piece(body):
            self._delivered(more=True)
        else:
            self._step(self._deliver(body, more=True))
        if self.unread or self._blocked is not None:
            self.wake()

    def fail(self, error: Exception) -> None:
        """Make `pump` raise this error. A callback has no caller to raise its own failure to."""
        self._failure = self._failure or error
        self._shut()
        self.wake()

    def wake(self) -> None:
        """Make `pump` check its condition again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- called from the request's task

    async def pump(self, over: Callable[[], bool], source: StreamSource | None = None) -> None:
        """Send frames as they are put, until `over()` is true and nothing is left to send.

        `source` is paused while the buffer is full. Raises `ClientGone` once the client has stopped the
        request, and the error of a callback that failed.
        """
        self._source = source
        try:
            await self._pump(over)
        except BaseException:
            self._shut()
            raise
        finally:
            self._source = None
            self._source_paused = False

    async def end(self) -> None:
        """Send the end of the body, if a response was begun and not yet ended."""
        if self.committed and not self.complete:
            self._shut()
            await self._deliver(b"", more=False)

    # -- mechanism

    async def _pump(self, over: Callable[[], bool]) -> None:
        client = self._client
        while True:
            try:
                if self._blocked is not None:
                    blocked, self._blocked = self._blocked, None
                    await blocked
                while self.unread and not client.stopped:
                    await self._flush()
            except Exception:
                self._reopen()
                raise
            if client.stopped:
                raise ClientGone
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if over():
                return
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _grew(self, size: int) -> None:
        if self.phase is DownstreamPhase.OPEN:
            self.phase = DownstreamPhase.COMMITTED
        self._shut()
        self.unread += size
        if self.unread > GUARANTEED_BYTES:
            self._budget.hold(self, self.unread)
        if self.unread > self._limit and self._source is not None and not self._source_paused:
            self._source_paused = True
            self._source.pause()

    def _shut(self) -> None:
        if self.writer is not None:
            self.writer.shut()

    def _reopen(self) -> None:
        """Take back a last frame that could not be sent, because the error needs a last frame of its own."""
        if self.phase is DownstreamPhase.CLOSING:
            self.phase = DownstreamPhase.COMMITTED
            self.discard()

    def _close_merged(self) -> None:
        template = self._merged_template
        if template is not None:
            self._frames.append(template.frame(bytes(self._merged_text)))
            self._merged_text.clear()
            self._merged_template = None

    def _take(self) -> bytes:
        """Remove the next frames, and return as many as one `send` should get."""
        if self._merged_template is not None:
            self._close_merged()
        frames = self._frames
        body = frames.popleft()
        if frames:
            taken, size = [body], len(body)
            while frames and size < _MAX_SEND_BYTES:
                size += len(frames[0])
                taken.append(frames.popleft())
            body = b"".join(taken)
        left = self.unread - len(body)
        if self.unread > GUARANTEED_BYTES:
            self._budget.hold(self, left)
        self.unread = left
        return body

    async def _flush(self) -> None:
        body = self._take()
        await self._deliver(body, more=self.phase is not DownstreamPhase.CLOSING or self.unread > 0)

    def _step(self, sending: Coroutine[Any, Any, None]) -> None:
        """Run `sending` until it first waits."""
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return
        except Exception as error:
            self.fail(error)
        else:
            self._blocked = Continued(sending, waiting_for)

    def _delivered(self, *, more: bool) -> None:
        """Note that a `send` has returned."""
        self.sending_since = None
        if not more:
            self.phase = DownstreamPhase.COMPLETE
        writer = self.writer
        if (
            writer is not None
            and not self.unread
            and self.phase is DownstreamPhase.COMMITTED
            and self._failure is None
            and not self._client.stopped
        ):
            writer.open()
        if self._source_paused and self.unread <= self._limit // 2:
            self._source_paused = False
            if self._source is not None:
                self._source.resume()

    async def _deliver(self, body: bytes, *, more: bool) -> None:
        self.sending_since = self._loop.time()
        if self._headers is not None:
            await self._start(self._headers())
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._delivered(more=more)

    async def _start(self, headers: Headers) -> None:
        self._headers = None
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
