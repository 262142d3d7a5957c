"""How a start or a run of a llama-server went wrong, in words for a person.

Exception
└── LlamaStartError    waiting for a llama-server is over: it gave up, was stopped, or took too long
"""

from dataclasses import dataclass
from typing import Final

_QUOTED_LINES: Final = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last process ended without being asked to, and what it wrote before (secrets removed)."""

    reason: str
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        quoted = self.output[-_QUOTED_LINES:]
        return "\n".join((self.reason, *(f"    {line}" for line in quoted)))

    @property
    def last_line(self) -> str:
        return self.output[-1] if self.output else ""


class LlamaStartError(Exception):
    """A llama-server that somebody waits for will not become ready now; the message says why."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message if failure is None else f"{message}: {failure}")
        self.failure = failure
