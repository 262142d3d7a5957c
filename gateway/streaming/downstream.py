"""The client's side of a streaming response: a bounded buffer of whole frames, and the one task that sends.

Frames are put from callbacks, as the upstream makes them, and never wait for the client. The request's own
task sits in `pump`, which sends what is there and sleeps until there is more. While it sleeps, `hand_over`
sends from within the callback itself: it takes the one step of `send` that writes to the socket, and only if
that step would wait (the client is slow) does the task wake and wait in its place. So a token costs no
switch between tasks. Where the server offers a plain write (`slotgate.write`), that is the step.

While one `send` has not returned the client is behind: plain text deltas of one template are then merged
into one frame, and when `buffer_limit` bytes are unread the upstream is told to pause.

The response is committed (status 200, event stream) by the first thing put; until then any status is free.
Nothing on the path of a frame awaits anything but `send`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from starlette.types import Send

from slotgate.gateway.http.eager import Continued
from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.streaming.buffer_budget import GUARANTEED_BYTES, BufferBudget, BufferShare
from slotgate.gateway.streaming.direct_writer import DirectWriter
from slotgate.gateway.streaming.template import Template

__all__ = ["Downstream"]

_MAX_SEND_BYTES = 64 * 1024
_MAX_MERGED_BYTES = 16 * 1024
"""Clients read lines: a merged frame stays of a size that any of them takes."""


Sending = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]


class Downstream:
    def __init__(
        self,
        send: Send,
        loop: asyncio.AbstractEventLoop,
        *,
        headers: Callable[[], Headers],
        buffer_limit: int,
        budget: BufferBudget,
        tenant: str,
        merge: bool,
        writer: DirectWriter | None = None,
    ) -> None:
        """`writer`, where the server has it, writes without a detour. It is open while all that was put has
        been sent: whoever then writes for himself overtakes nothing."""
        self.writer = writer
        self.unread = 0
        """Bytes put and not yet handed to `send`."""
        self.committed = False
        self.closing = False
        """Whether the last frame has been put."""
        self.complete = False
        """Whether the end of the body has been handed to `send`."""
        self.sending_since: float | None = None
        """When the `send` under way began; None while none is."""
        self.on_cancel: Callable[[], None] = _nothing
        """All streams together hold too much, and this one has to go."""
        self.holding = BufferShare(tenant, stalled=lambda: self.sending_since is not None, cut=self._was_cut)
        self.on_full: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self._send: Sending = cast("Sending", send)
        self._loop = loop
        self._headers: Callable[[], Headers] | None = headers
        self._limit = buffer_limit
        self._budget = budget
        self._merge = merge
        self._frames: deque[bytes] = deque()
        self._run: Template | None = None
        self._run_text = bytearray()
        self._full = False
        self._stopped = False
        self._failure: Exception | None = None
        self._blocked: Continued[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "complete" if self.complete else "committed" if self.committed else "open"
        return f"<Downstream {state} {self.unread} bytes unread>"

    # -- from callbacks

    def put(self, frame: bytes) -> None:
        """One or more whole frames."""
        if self._run is not None:
            self._close_run()
        self._frames.append(frame)
        self._grew(len(frame))

    def delta(self, template: Template, text: bytes) -> None:
        """One plain text delta. Merged with the one before if that waits and is of the same template."""
        if self.sending_since is None or not self._merge:
            self.put(template.frame(text))
            return
        if template is not self._run or len(self._run_text) > _MAX_MERGED_BYTES:
            self._close_run()
            self._run = template
            self.unread += len(template.prefix) + len(template.suffix)
        self._run_text += text
        self._grew(len(text))

    def close(self, last: bytes = b"") -> None:
        """Nothing more will be put after this frame. The first end counts, unless `send` failed with it."""
        if last and not self.closing:
            self.put(last)
        self.closing = True
        self._shut()
        self.wake()

    def discard(self) -> None:
        """Forget what is unread; the backstop of the budget."""
        self._budget.release(self.holding)
        self._frames.clear()
        self._run = None
        self._run_text.clear()
        self.unread = 0

    def hand_over(self) -> None:
        """Send what was put, now, if the request's task sleeps; else the task will, and whatever is left.

        A step of `send` runs outside any task here. It may do what a socket write needs, and no more. It is
        not the last one: whoever ends the body wakes the task.
        """
        waiter = self._waiter
        if not self.unread or waiter is None or waiter.done():
            return
        body = self._take()
        if self._headers is None and self.writer is not None and self.writer.piece(body):
            self._delivered(more=True)
        else:
            self._step(self._deliver(body, more=True))
        if self.unread or self._blocked is not None:
            self.wake()

    def stop(self) -> None:
        """Nobody reads any more: `pump` ends with `ClientGone`."""
        self._stopped = True
        self._shut()
        self.wake()

    def fail(self, error: Exception) -> None:
        """A callback failed, and nobody called it who could be told: `pump` raises its error."""
        self._failure = self._failure or error
        self._shut()
        self.wake()

    def wake(self) -> None:
        """Something changed that `pump`'s caller may be waiting for."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- from the request's task

    async def pump(self, over: Callable[[], bool]) -> None:
        """Send what is put, as it is put, until `over()` and nothing is left to send.

        Raises `ClientGone` once it was told to stop, and what a callback failed with.
        """
        while True:
            try:
                if self._blocked is not None:
                    blocked, self._blocked = self._blocked, None
                    await blocked
                while self.unread and not self._stopped:
                    await self._flush()
            except Exception:
                self._reopen()
                raise
            if self._stopped:
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

    async def end(self) -> None:
        """The end of the body, if a response was begun and not yet ended."""
        if self.committed and not self.complete:
            self._shut()
            await self._deliver(b"", more=False)

    # -- mechanism

    def _grew(self, size: int) -> None:
        self.committed = True
        self._shut()
        self.unread += size
        if self.unread > GUARANTEED_BYTES:
            self._budget.hold(self.holding, self.unread)
        if self.unread > self._limit and not self._full:
            self._full = True
            self.on_full()

    def _shut(self) -> None:
        if self.writer is not None:
            self.writer.shut()

    def _reopen(self) -> None:
        """Sending failed: another end has to be put, and of the one before nothing may be sent."""
        if self.closing:
            self.closing = False
            self.discard()

    def _was_cut(self) -> None:
        self.on_cancel()

    def _close_run(self) -> None:
        run = self._run
        if run is not None:
            self._frames.append(run.frame(bytes(self._run_text)))
            self._run_text.clear()
            self._run = None

    def _take(self) -> bytes:
        """The next frames, whole, up to a size that does not flood the transport."""
        if self._run is not None:
            self._close_run()
        frames = self._frames
        body = frames.popleft()
        if frames:
            taken, size = [body], len(body)
            while frames and size < _MAX_SEND_BYTES:
                size += len(frames[0])
                taken.append(frames.popleft())
            body = b"".join(taken)
        if self.holding.bytes:
            self._budget.hold(self.holding, self.unread - len(body))
        self.unread -= len(body)
        return body

    async def _flush(self) -> None:
        body = self._take()
        await self._deliver(body, more=not self.closing or self.unread > 0)

    def _step(self, sending: Coroutine[Any, Any, None]) -> None:
        """As far as it gets without waiting."""
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return
        except Exception as error:
            self.fail(error)
        else:
            self._blocked = Continued(sending, waiting_for)

    def _delivered(self, *, more: bool) -> None:
        """A `send` has returned."""
        self.sending_since = None
        self.complete = not more
        busy = not more or self.unread or self.closing or self._stopped or self._failure
        if self.writer is not None and not busy:
            self.writer.open()
        if self._full and self.unread <= self._limit // 2:
            self._full = False
            self.on_room()

    async def _deliver(self, body: bytes, *, more: bool) -> None:
        self.sending_since = self._loop.time()
        if self._headers is not None:
            await self._start(self._headers())
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._delivered(more=more)

    async def _start(self, headers: Headers) -> None:
        self._headers = None
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _nothing() -> None:
    """Nobody listens."""
