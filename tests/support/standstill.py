"""A gateway in a process of its own that notes how long its event loop stood still, and the notes' reader.

    python -m tests.support.standstill CONFIG NOTES

A timer comes every millisecond. The CPU time of the whole process between two of its ticks is the length of
the step between them, however busy the machine is. A step that other threads delay, by holding the
interpreter lock, counts as well. The longest one is written to NOTES, a file with one number, which the
reader resets.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import sys
import time
from pathlib import Path

TICK_S = 0.001


class Standstill:
    """The longest step of the gateway's event loop since the last `reset`."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.reset()

    def reset(self) -> None:
        with self.notes.open("r+b" if self.notes.exists() else "wb") as file:  # the gateway has it mapped
            file.write(struct.pack("d", 0.0))

    @property
    def ms(self) -> float:
        [seconds] = struct.unpack("d", self.notes.read_bytes())
        return float(seconds) * 1000


def main(configuration: str, notes: str) -> int:
    from slotgate.gateway.app.serve import ServeHooks, serve
    from slotgate.gateway.settings import load

    with open(notes, "r+b") as file, mmap.mmap(file.fileno(), 8) as longest:

        def watch() -> None:
            loop = asyncio.get_running_loop()
            before = time.process_time()

            def tick() -> None:
                nonlocal before
                now = time.process_time()
                if now - before > struct.unpack("d", longest)[0]:
                    longest[:] = struct.pack("d", now - before)
                before = now
                loop.call_later(TICK_S, tick)

            tick()

        return serve(load(Path(configuration), os.environ), hooks=ServeHooks(listening=watch))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
