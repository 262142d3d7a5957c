"""Cuts the output of a child process into lines, removes secrets and keeps the last lines.

`feed` takes bytes and calls `on_line` for each line. This module never awaits, never raises on what it is
fed, and holds a bounded amount of it: a line longer than `MAX_LINE_BYTES` loses its rest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["KEPT_LINES", "MAX_LINE_BYTES", "ChildOutput"]

MAX_LINE_BYTES: Final = 4096
KEPT_LINES: Final = 50

_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ChildOutput:
    """The output of one process; `tail` is what error messages quote."""

    def __init__(self, on_line: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self._on_line = on_line
        self._secrets = [secret.encode() for secret in secrets]
        # A secret that begins within the limit is complete before the line is cut.
        self._hold = MAX_LINE_BYTES + max((len(secret) for secret in self._secrets), default=0)
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = b""
        self._cut = False

    def __repr__(self) -> str:
        return f"<ChildOutput {len(self._tail)} lines kept, {len(self._partial)} bytes pending>"

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first, at most `KEPT_LINES`."""
        return tuple(self._tail)

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        for line in lines:
            self._line_ended(line)
        self._partial = rest
        if len(rest) > self._hold:
            self._overflowed()

    def end(self) -> None:
        """Take a last line without a newline, because the process has ended."""
        self.feed(b"\n")

    def _line_ended(self, line: bytes) -> None:
        if self._cut:
            self._cut = False
        else:
            self._emit(line)

    def _overflowed(self) -> None:
        if not self._cut:
            self._emit(self._partial)
        self._cut, self._partial = True, b""

    def _emit(self, line: bytes) -> None:
        for secret in self._secrets:
            line = line.replace(secret, b"*" * len(secret))  # the same length: the limit stays where it was
        text = _CONTROLS.sub("", line[:MAX_LINE_BYTES].decode("utf-8", "replace")).rstrip()
        if text:
            self._tail.append(text)
            self._on_line(text)
