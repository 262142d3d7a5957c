"""Where the events of an answer go: a stream of HTTP chunks, or nowhere until all has been said."""

from __future__ import annotations

import asyncio

from slotgate.gateway.testing.fake.model.client_checks import Abandoned, Attention
from slotgate.gateway.testing.fake.net.wire import END, PING, STREAM_HEAD, chunked, data
from slotgate.gateway.testing.fake.net.writer import Damage, Line
from slotgate.gateway.testing.fake.script.scene import Fault

__all__ = ["Stream", "Whole"]


class Whole:
    """An answer that is no stream: only the look for a closed connection is left."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def begin(self) -> None:
        """Nothing is told before the end."""

    async def tell(self, events: bytes) -> None:
        """Kept by the teller."""

    def look(self) -> None:
        if self._line.gone:
            raise Abandoned


class Stream:
    def __init__(self, line: Line, attention: Attention, fault: Fault | None, ping_s: float) -> None:
        """`ping_s` is the pause between pings while there is nothing to say; below 0 there are none."""
        self.begun = False
        self._line = line
        self._attention = attention
        self._damage = Damage(fault)
        self._ping_s = ping_s
        self._clock = asyncio.get_running_loop().time
        self._last_sign = self._clock()
        self.opening = b""
        """What the body begins with, before any choice says something."""

    async def begin(self) -> None:
        """The head leaves when a slot has been taken: before the prompt is read."""
        if self.begun:
            return
        self.begun = True
        self._line.write(STREAM_HEAD)
        self._last_sign = self._clock()
        if self.opening:
            await self.tell(self.opening)

    async def tell(self, events: bytes) -> None:
        """Raises `Abandoned`: the write is what notices that the client has left."""
        if not events:
            return
        if self._line.gone:
            raise Abandoned
        self._attention.result()
        self._last_sign = self._clock()
        await self._damage.write(events, self._line, asyncio.sleep)

    def look(self) -> None:
        if self._line.gone:
            raise Abandoned
        if self.begun and self._ping_s >= 0 and self._clock() - self._last_sign >= self._ping_s:
            self._last_sign = self._clock()
            self._line.write(chunked(PING))

    def end(self) -> None:
        """The connection is closed behind every stream, although the head says keep-alive."""
        self._line.write(END)
        self._line.finish()

    def fail(self, event: bytes) -> None:
        """A clean end of the body behind an error; no sentinel."""
        self._line.write(chunked(event))
        self.end()


OPENING_OF_SEVERAL = data(None)
"""A stream of several prompts begins with a frame that says nothing."""
