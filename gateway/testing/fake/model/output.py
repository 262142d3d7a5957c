"""The two outputs of a generation: a stream of HTTP chunks, or a buffered answer."""

from __future__ import annotations

import asyncio

from slotgate.gateway.testing.fake.model.client_checks import Abandoned, ClientChecks
from slotgate.gateway.testing.fake.net.wire import END, PING, STREAM_HEAD, chunked, data
from slotgate.gateway.testing.fake.net.writer import ResponseWriter
from slotgate.gateway.testing.fake.script.damage import StreamDamage
from slotgate.gateway.testing.fake.script.scene import ScriptedFault

__all__ = ["BufferedOutput", "StreamOutput"]


class BufferedOutput:
    """The output of an answer that is not a stream. It only checks whether the client has left."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer

    async def begin(self) -> None:
        """Do nothing: a buffered answer begins when it is complete."""

    async def send(self, events: bytes) -> None:
        """Drop the events: the formatter keeps the tokens for the body."""

    def check_client(self) -> None:
        if self._writer.gone:
            raise Abandoned


class StreamOutput:
    """The output of a stream of server-sent events. All choices of an answer share it."""

    def __init__(
        self, writer: ResponseWriter, client_checks: ClientChecks, fault: ScriptedFault | None, ping_s: float
    ) -> None:
        """`ping_s` is the pause between pings while no event is due. A negative value turns pings off."""
        self.begun = False
        self._writer = writer
        self._client_checks = client_checks
        self._damage = StreamDamage(fault)
        self._ping_s = ping_s
        self._clock = asyncio.get_running_loop().time
        self._last_write = self._clock()
        self.opening = b""
        """Events at the beginning of the body, before those of any choice."""

    async def begin(self) -> None:
        """Write the head. llama-server does so when a slot is taken, before it reads the prompt."""
        if self.begun:
            return
        self.begun = True
        self._writer.write(STREAM_HEAD)
        self._last_write = self._clock()
        if self.opening:
            await self.send(self.opening)

    async def send(self, events: bytes) -> None:
        """Write the events. Raises `Abandoned`, because a write notices that the client has left."""
        if not events:
            return
        if self._writer.gone:
            raise Abandoned
        self._client_checks.note_result()
        self._last_write = self._clock()
        await self._damage.write(events, self._writer, asyncio.sleep)

    def check_client(self) -> None:
        if self._writer.gone:
            raise Abandoned
        if self.begun and self._ping_s >= 0 and self._clock() - self._last_write >= self._ping_s:
            self._last_write = self._clock()
            self._writer.write(chunked(PING))

    def end(self) -> None:
        """End the body and close the connection. llama-server closes although the head says keep-alive."""
        self._writer.write(END)
        self._writer.finish()

    def fail(self, event: bytes) -> None:
        """Write an error event and end the body, without a sentinel."""
        self._writer.write(chunked(event))
        self.end()


OPENING_OF_SEVERAL = data(None)
"""The first event of a stream of several prompts: its data is `null`."""
