"""The delivery of one answer to the kernel, which sends it as fast as the client reads.

    WRITING --last byte written--> SENDING --write buffer empty--> SENT
        \\                             \\---- connection lost -----> GONE
         \\---- nothing taken for `stall_timeout_s`, closed -------> STALLED

The connection reports what happens to it. While bytes wait, a timer compares the size of the write buffer. A
client that takes something is never cut off, however slow it is; one that takes nothing is. Under TLS, the
last 64 KiB may wait in a buffer that is not seen here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slotgate.gateway.http.delivery import Delivered

__all__ = ["AnswerDelivery"]

STALL_TIMEOUT_S = 60.0
"""The limit for an application that sets none."""
LOOKS = 4
"""Looks at the buffer in one `stall_timeout_s`. A stalled client is noticed so much later at most."""


class AnswerDelivery:
    """Belongs to one request of a connection. The extension `slotgate.delivery` of the request's scope."""

    __slots__ = (
        "_loop",
        "_result",
        "_stalled",
        "_taken_at",
        "_then",
        "_timer",
        "_transport",
        "_unsent",
        "_waiter",
        "stall_timeout_s",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.stall_timeout_s = STALL_TIMEOUT_S
        self._transport = transport
        self._loop = loop
        self._result: Delivered | None = None
        self._stalled = False
        self._then: Callable[[], None] | None = None
        """Called once all bytes are sent. Set while SENDING."""
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        """Bytes that waited at the last look."""
        self._taken_at = 0.0
        """The time at which the client was last seen to take something."""
        self._waiter: asyncio.Future[Delivered] | None = None

    def __repr__(self) -> str:
        state = "sending" if self._then is not None else "writing"
        return f"<AnswerDelivery {self._result.value if self._result else state}>"

    @property
    def result(self) -> Delivered | None:
        return self._result

    @property
    def sending(self) -> bool:
        """True while the answer is complete and bytes of it wait."""
        return self._then is not None

    async def over(self) -> Delivered:
        """Wait for the end. An answer that is not complete is not going to be: it counts as gone."""
        if self._result is not None:
            return self._result
        if self._then is None:
            return Delivered.GONE
        self._look_soon()  # the limit may have changed
        self._waiter = self._waiter or self._loop.create_future()
        return await asyncio.shield(self._waiter)

    # -- called by the connection

    def written(self, then: Callable[[], None]) -> None:
        """The answer is complete: call `then` when all of it is sent, now if nothing waits."""
        if not self._transport.get_write_buffer_size():
            self._settle(Delivered.SENT)
            then()
            return
        self._then = then
        self._transport.set_write_buffer_limits(high=0)  # `resumed` is called when the buffer is empty
        self.paused()

    def paused(self) -> None:
        """Bytes wait from now on."""
        if self._timer is None and self._result is None:
            self._unsent = self._transport.get_write_buffer_size()
            self._taken_at = self._loop.time()
            self._look_soon()

    def resumed(self) -> None:
        """The client has caught up. Of a complete answer, nothing is left."""
        self._rest()
        then, self._then = self._then, None
        if then is not None:
            self._transport.set_write_buffer_limits()
            self._settle(Delivered.SENT)
            then()

    def lost(self) -> None:
        """The connection is lost, or nobody reads it any more."""
        self._rest()
        self._then = None
        self._settle(Delivered.STALLED if self._stalled else Delivered.GONE)

    # -- mechanism

    def _settle(self, result: Delivered) -> None:
        if self._result is None:
            self._result = result
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(result)

    def _look_soon(self) -> None:
        self._rest()
        self._timer = self._loop.call_later(self.stall_timeout_s / LOOKS, self._look)

    def _rest(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        unsent, now = self._transport.get_write_buffer_size(), self._loop.time()
        if unsent != self._unsent:
            self._unsent, self._taken_at = unsent, now
        if now - self._taken_at >= self.stall_timeout_s:
            self._timer = None
            self._stalled = True
            self._transport.abort()
        else:
            self._look_soon()
