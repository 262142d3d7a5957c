"""The reasons why a llama-server ended by itself, and whether another start may help.

A process that exits by itself before it is ready has found something wrong: the program, an option, the file
of the model, its architecture, the memory. The same start will find the same, so the failure is lasting. A
process that was killed, that lost its port to another program, or that had been ready before may do better
next time.

What llama-server writes may contain paths of this machine, which clients must not see. So a reason is made of
the exit status and of sentences of this module, and the output is kept apart, for operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slotgate.gateway.processes.child import Exit

__all__ = ["ProcessFailure", "failure_before_ready"]

_QUOTED_LINES: Final = 10
_CAUSES: Final = (
    (re.compile(r"unknown model architecture: '([\w.-]{1,40})'"), "unknown model architecture {}"),
    (re.compile(r"cannot start .*: No such file"), "the program of its command does not exist"),
    (re.compile(r"cannot start .*: Permission denied"), "the program of its command may not be executed"),
    (
        re.compile(r"unknown argument|invalid argument|unknown option"),
        "it does not know an option of its command",
    ),
    (re.compile(r"out of memory|unable to allocate|failed to allocate", re.I), "there is not enough memory"),
    (re.compile(r"No such file or directory|does not exist"), "a file does not exist, probably the model"),
    (re.compile(r"failed to (load|open).*(gguf|model)", re.I), "its model cannot be loaded"),
)
"""A text in the output -> the sentence for it. The first text that is found counts."""
_PORT_TAKEN: Final = re.compile(r"couldn.?t bind|failed to bind|address already in use", re.I)


@dataclass(frozen=True, slots=True)
class ProcessFailure:
    """The reason why the last process ended by itself, and what it wrote before (secrets removed)."""

    reason: str
    output: tuple[str, ...] = ()
    lasting: bool = False
    """True if another start would fail in the same way."""

    def __str__(self) -> str:
        quoted = self.output[-_QUOTED_LINES:]
        return "\n".join((self.reason, *(f"    {line}" for line in quoted)))

    @property
    def last_line(self) -> str:
        return self.output[-1] if self.output else ""


def failure_before_ready(reason: str, end: Exit | None, output: Sequence[str]) -> ProcessFailure:
    """Return the failure of a process that was never ready. `end` is None if it had to be ended."""
    lines = tuple(output)
    cause = _cause(lines)
    said = f"{reason} ({cause})" if cause and end is not None else reason
    by_itself = end is not None and (end.code >= 0 or end.is_wrong_build)
    return ProcessFailure(said, lines, lasting=by_itself and not _says(_PORT_TAKEN, lines))


def _cause(lines: Iterable[str]) -> str:
    for pattern, sentence in _CAUSES:
        for line in lines:
            if found := pattern.search(line):
                return sentence.format(*found.groups()) if pattern.groups == 1 else sentence
    return ""


def _says(pattern: re.Pattern[str], lines: Iterable[str]) -> bool:
    return any(pattern.search(line) for line in lines)
