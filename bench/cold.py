"""`python -m bench.cold`: the time that the gateway's own code takes for one token, with warm and cold
caches.

A loop that only forwards tokens always finds its code and data in the caches of the core. A gateway does not:
between two tokens the core sleeps or runs other programs. So for the cold figure, other code runs between two
tokens (digests, compression, a query), and two megabytes are written. Only the token is timed, from the read
callback to the write. There are no sockets.

Use it to compare two states of the code on one machine, with a few alternating runs of each. A single figure
means little.
"""

from __future__ import annotations

import bz2
import gc
import hashlib
import sqlite3
import statistics
import sys
import zlib
from collections import deque
from contextlib import AsyncExitStack
from time import perf_counter_ns

import uvloop

from bench.guard import events
from tests.support.in_memory_stream import CHUNKED, InMemoryStream

__all__ = ["main"]

STREAMS = 32
TOKENS = 3000
SETTLED = 100
"""Events of each stream that are not timed."""
_DIRT = bytearray(2 << 20)
_BLOB = bytes(range(256)) * 4


def _others_run(database: sqlite3.Connection) -> None:
    _DIRT[:] = bytes(len(_DIRT))
    for digest in (hashlib.sha512, hashlib.blake2b, hashlib.sha3_256, hashlib.md5):
        digest(_BLOB).digest()
    zlib.compress(_BLOB)
    bz2.compress(_BLOB)
    database.execute("SELECT sum(a + 1), b FROM t WHERE a > 3 GROUP BY b ORDER BY 1").fetchall()


async def _token_us(*, cold: bool) -> float:
    """Return the median time of a token."""
    reads = [b"%x\r\n%b\r\n" % (len(event), event) for event in events(TOKENS + SETTLED)]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t(a, b)")
    taken: deque[bytes] = deque(maxlen=1)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(InMemoryStream(taken=taken.append)) for _ in range(STREAMS)
        ]
        for stream in streams:
            stream.read(CHUNKED)
            for read in reads[:SETTLED]:
                stream.read(read)
                await stream.settle()
        gc.collect()
        gc.freeze()
        took = []
        for number, read in enumerate(reads[SETTLED:]):
            stream = streams[number % STREAMS]
            if cold:
                _others_run(database)
            began = perf_counter_ns()
            stream.read(read)
            took.append(perf_counter_ns() - began)
    database.close()
    return statistics.median(took) / 1e3


def main() -> int:
    for name, cold in (("warm", False), ("cold", True)):
        print(f"{name}: {uvloop.run(_token_us(cold=cold)):.2f} µs a token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
