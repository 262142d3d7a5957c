"""What `slotgate run` says while a model loads. It never sleeps: somebody ticks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

__all__ = ["Progress"]

_QUIET_S: Final = 10.0


class Progress:
    """Counts the seconds: on a terminal in a line that is rewritten, elsewhere in one every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._rewrites = stream.isatty()
        self._began = clock()
        self._told = self._began
        self._what = ""

    def begin(self, what: str) -> None:
        self._what = what
        self._began = self._told = self._clock()
        self._write(f"{what} …\n")

    def tick(self) -> None:
        now = self._clock()
        if self._rewrites:
            self._write(f"\r  {now - self._began:.0f} s")
        elif now - self._told >= _QUIET_S:
            self._told = now
            self._write(f"{self._what}: {now - self._began:.0f} s\n")

    def end(self, how: str) -> None:
        start = "\r" if self._rewrites else ""
        self._write(f"{start}{how} after {self._clock() - self._began:.1f} s\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
