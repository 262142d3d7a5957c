"""`make bench-guard`: how much Python runs for one forwarded token, counted and not timed.

20,000 events as llama-server writes them go through `gateway.frames` and `gateway.downstream` to a client
that takes everything at once. Interpreter instructions and calls into C are counted by the interpreter's own
hooks, so the same code gives the same counts on any machine, however busy. When either has grown by half
against what is recorded here, our own work per token has: make it less, or record it anew and say why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from starlette.types import Message

from gateway.buffers import BufferBudget
from gateway.chunks import Identity
from gateway.downstream import Downstream
from gateway.frames import ChatFrames, FrameOptions
from gateway.metering import Meter

__all__ = ["BASELINE", "EVENTS", "LIMIT", "Work", "count", "events"]

EVENTS = 20_000
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


BASELINE = Work(instructions=311.2, calls=10.9)
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
    """The work per event, and how many sends there were."""
    sends = 0

    async def send(message: Message) -> None:
        nonlocal sends
        sends += message["type"] == "http.response.body"

    loop = asyncio.get_running_loop()
    out = Downstream(
        send, loop, headers=list, buffer_limit=1 << 20, budget=BufferBudget(1 << 20), tenant="t", merge=True
    )
    frames = ChatFrames(Identity("chatcmpl-1", 1, "public"), out, Meter(), FrameOptions(), loop.time)
    over = False
    pump = loop.create_task(out.pump(lambda: over))
    reads = list(events(number))
    for read in reads[:_RARE]:  # the response begins, and the template is learnt
        frames.feed(read)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    measured = -frames.events
    with _counted() as counts:
        for read in reads[_RARE:]:
            frames.feed(read)
            out.hand_over()
    measured += frames.events
    over = True
    out.wake()
    await pump
    return Work(counts["opcode"] / measured, counts["c_call"] / measured), sends


@contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """Counts what the frames entered inside execute, and the C functions called inside."""
    counts = {"opcode": 0, "c_call": 0}

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:  # noqa: ANN401
        if event == "opcode":
            counts["opcode"] += 1
        else:
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
        return trace

    def profile(_: FrameType, event: str, __: Any) -> None:  # noqa: ANN401
        if event == "c_call":
            counts["c_call"] += 1

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


def main() -> int:
    work, _ = asyncio.run(count())
    print(f"{work}; recorded: {BASELINE}")
    if work.exceeds(BASELINE):
        print(f"our own work per token has grown by more than {LIMIT - 1:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
