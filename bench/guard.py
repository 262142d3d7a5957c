"""`make bench-guard`: how much Python runs for one forwarded token, counted and not timed.

20,000 events as llama-server writes them go all the way from a read callback of `gateway.upstream` to a write
on the client's transport, which takes everything at once. Interpreter instructions and calls into C are
counted by the interpreter's own hooks, so the same code gives the same counts on any machine, however busy.
When either has grown by half against what is recorded here, our own work per token has: make it less, or
record it anew and say why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from admission import Demand, Lease
from bench.instructions import counted
from gateway.buffers import BufferBudget
from gateway.chunk_writer import ChunkWriter
from gateway.chunks import Identity
from gateway.context import RequestContext
from gateway.dialects import ChatDialect, FrameOptions
from gateway.downstream import Downstream
from gateway.frames import Frames
from gateway.metering import Meter
from gateway.relay import Relay
from gateway.upstream import Exchange, Outgoing, UpstreamTransport
from gateway.upstream.connection import Sink, UpstreamConnection

__all__ = ["BASELINE", "EVENTS", "LIMIT", "Work", "count", "events"]

EVENTS = 20_000
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LIMIT = 1.5
_RARE = 100
"""One event in so many is no plain text: it holds an escape, or comes in two reads."""
_SHAPE = (
    '{{"choices":[{{"finish_reason":null,"index":0,"delta":{{"content":{text}}}}}],"created":1795967593,'
    '"id":"chatcmpl-MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI","model":"/models/tiny.gguf",'
    '"system_fingerprint":"b1-7e4c0a9","object":"chat.completion.chunk"}}'
)


@dataclass(frozen=True, slots=True)
class Work:
    """What one event costs."""

    instructions: float
    calls: float
    """Into functions written in C."""

    def __str__(self) -> str:
        return f"{self.instructions:.1f} interpreter instructions and {self.calls:.1f} calls into C per event"

    def exceeds(self, baseline: Work) -> bool:
        return self.instructions > baseline.instructions * LIMIT or self.calls > baseline.calls * LIMIT


BASELINE = Work(instructions=221.7, calls=6.3)
"""On CPython 3.11."""


def events(number: int) -> Iterator[bytes]:
    """The bodies of the reads, one event each but for the rare ones."""
    for index in range(number):
        event = b"data: " + _SHAPE.format(text=f'" word{index}"').encode() + b"\n\n"
        if index % _RARE == _RARE // 2:
            yield b"data: " + _SHAPE.format(text='"caf\\u00e9\\n"').encode() + b"\n\n"
        elif index % _RARE == 0:
            yield event[:40]
            yield event[40:]
        else:
            yield event


async def count(number: int = EVENTS) -> tuple[Work, int]:
    """The work per event, and how many pieces were written to the client."""
    loop = asyncio.get_running_loop()
    client, backend = _Client(), _Backend(loop)
    out = Downstream(
        client.send,
        loop,
        headers=list,
        buffer_limit=1 << 20,
        budget=BufferBudget(1 << 20),
        tenant="t",
        merge=True,
        write_now=client.writer,
    )
    meter = Meter()
    frames = Frames(
        ChatDialect(Identity("chatcmpl-1", 1, "public"), meter, FrameOptions()), out, meter, loop.time
    )
    relay = Relay(
        _lease(loop),
        frames,
        out,
        RequestContext(id="1", began_at=0.0),
        grace_s=1.0,
        scrub=bytes,
        loop=loop,
    )
    relay.start(cast("UpstreamTransport", backend), Outgoing(b"", ()))
    pump = loop.create_task(out.pump(lambda: relay.over))
    await asyncio.sleep(0)
    backend.connection.data_received(_HEAD)
    reads = [b"%x\r\n%b\r\n" % (len(read), read) for read in events(number)]
    for read in reads[:_RARE]:  # the response begins, and the template is learnt
        backend.connection.data_received(read)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    measured = -meter.deltas
    with counted() as counts:
        for read in reads[_RARE:]:
            backend.connection.data_received(read)
    measured += meter.deltas
    relay.close()
    out.wake()
    await pump
    return Work(counts["opcode"] / measured, counts["c_call"] / measured), client.pieces


def _lease(loop: asyncio.AbstractEventLoop) -> Lease:
    return Lease(
        Demand("t", "public"),
        pool_name="backend",
        clock=loop.time,
        on_cost=lambda _: None,
        on_release=lambda _: None,
    )


class _Client:
    """Takes everything at once and counts the pieces. Stands in for what a writer asks of uvicorn."""

    write_paused = False
    disconnected = False
    response_complete = False
    chunked_encoding = True

    def __init__(self) -> None:
        self.pieces = 0
        self.writer = ChunkWriter(
            cast("RequestResponseCycle", self), cast("FlowControl", self), self._transport_write
        )

    async def send(self, message: Message) -> None:
        self.pieces += message["type"] == "http.response.body"

    def _transport_write(self, _: bytes) -> None:
        self.pieces += 1


class _Backend:
    """An upstream transport whose connection is read from by calling it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = UpstreamConnection(loop)
        self.connection.connection_made(_Socket())

    async def open(self, _: Outgoing, sink: Sink) -> Exchange:
        self.connection.send(b"", (), sink)
        return Exchange(self.connection)


class _Socket(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def main() -> int:
    work, _ = asyncio.run(count())
    print(f"{work}; recorded: {BASELINE}")
    if work.exceeds(BASELINE):
        print(f"our own work per token has grown by more than {LIMIT - 1:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
