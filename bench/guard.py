"""`make bench-guard`: count, not time, the Python that runs for one forwarded token.

20,000 events as llama-server writes them go all the way from a read callback of the upstream connection to a
write on the client's transport, which accepts every write at once. The interpreter's hooks count its
instructions and the calls into C, so the same code gives the same counts on any machine, busy or not. The
check fails if either count is more than 1.5 times the recorded one. Then reduce the work per token, or record
the new counts and say why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bench.instructions import counted
from tests.support.in_memory_stream import CHUNKED, InMemoryStream

__all__ = ["BASELINE", "EVENTS", "LIMIT", "TokenWork", "count", "events"]

EVENTS = 20_000
LIMIT = 1.5
_RARE = 100
"""Two of this many events are not plain: one has escapes in its text, and one comes in two reads."""
_SHAPE = (
    '{{"choices":[{{"finish_reason":null,"index":0,"delta":{{"content":{text}}}}}],"created":1795967593,'
    '"id":"chatcmpl-MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI","model":"/models/tiny.gguf",'
    '"system_fingerprint":"b1-7e4c0a9","object":"chat.completion.chunk"}}'
)


@dataclass(frozen=True, slots=True)
class TokenWork:
    """The work for one event."""

    instructions: float
    calls: float
    """Calls of functions written in C."""

    def __str__(self) -> str:
        return f"{self.instructions:.1f} interpreter instructions and {self.calls:.1f} calls into C per event"

    def exceeds(self, baseline: TokenWork) -> bool:
        return self.instructions > baseline.instructions * LIMIT or self.calls > baseline.calls * LIMIT


BASELINE = TokenWork(instructions=127.2, calls=6.6)
"""On CPython 3.11."""


def events(number: int) -> Iterator[bytes]:
    """Yield the bodies of the reads: one event each, except for the rare events."""
    for index in range(number):
        event = b"data: " + _SHAPE.format(text=f'" word{index}"').encode() + b"\n\n"
        if index % _RARE == _RARE // 2:
            yield b"data: " + _SHAPE.format(text='"caf\\u00e9\\n"').encode() + b"\n\n"
        elif index % _RARE == 0:
            yield event[:40]
            yield event[40:]
        else:
            yield event


async def count(number: int = EVENTS) -> tuple[TokenWork, int]:
    """Return the work per event, and the number of pieces that were written to the client."""
    reads = [b"%x\r\n%b\r\n" % (len(read), read) for read in events(number)]
    async with InMemoryStream() as stream:
        stream.read(CHUNKED)
        for read in reads[:_RARE]:  # the response begins, and a template is learnt
            stream.read(read)
            await stream.settle()
        measured = -stream.token_usage.deltas
        with counted() as counts:
            for read in reads[_RARE:]:
                stream.read(read)
        measured += stream.token_usage.deltas
    return TokenWork(counts["opcode"] / measured, counts["c_call"] / measured), stream.client.pieces


def main() -> int:
    work, _ = asyncio.run(count())
    print(f"{work}; recorded: {BASELINE}")
    if work.exceeds(BASELINE):
        print(f"the work per token has grown by more than {LIMIT - 1:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
