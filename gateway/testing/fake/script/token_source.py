"""Sources of the tokens of an answer: the pace of a script, or the cues of a test.

A source returns tokens, a fault, or None at the end. It waits through `GenerationWaits`, so that the server
notices a client that leaves meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from slotgate.gateway.testing.fake.script.answer_content import Token
from slotgate.gateway.testing.fake.script.scene import FaultKind, Pace, ScriptedFault

__all__ = ["GenerationWaits", "ReportProgress", "TimedTokens", "TokenSource"]

Result = TypeVar("Result")


ReportProgress = Callable[[float], Awaitable[None]]
"""Called with the share of the prompt that has been read, from 0 to 1."""


class GenerationWaits(Protocol):
    """Waits that end early when the client leaves or the generation is aborted."""

    def until(self, when: float) -> Awaitable[None]: ...

    def wait(self, happening: asyncio.Future[Result]) -> Awaitable[Result]: ...


class TokenSource(Protocol):
    """Gives the tokens of one answer at their times."""

    finish: str
    """The finish reason; valid once `next` has returned None."""

    async def prefill(
        self, waits: GenerationWaits, prompt_tokens: int, progress: ReportProgress | None
    ) -> None:
        """Return when the prompt has been read. `progress`, if given, is called while it is read."""
        ...

    async def next(self, waits: GenerationWaits) -> Token | ScriptedFault | None: ...


_AT_THE_END = frozenset({FaultKind.SLOW_CLOSE, FaultKind.NO_DONE})
_FORM_ONLY = frozenset({FaultKind.CRLF, FaultKind.BOM, FaultKind.HALF_FRAMES, FaultKind.WRONG_LENGTH})
_PROGRESS_STEPS = 4


class TimedTokens:
    """The tokens of a script at its pace.

    Times are absolute, counted from the end of the prompt, so a late write does not delay later writes.
    """

    def __init__(
        self,
        tokens: tuple[Token, ...],
        finish: str,
        pace: Pace,
        fault: ScriptedFault | None,
        generator: random.Random,
    ) -> None:
        self.finish = finish
        self._tokens = tokens
        self._pace = pace
        self._fault = None if fault is None or fault.kind in _AT_THE_END | _FORM_ONLY else fault
        self._random = generator
        self._said = 0
        self._due = 0.0
        self._clock = asyncio.get_running_loop().time

    async def prefill(
        self, waits: GenerationWaits, prompt_tokens: int, progress: ReportProgress | None
    ) -> None:
        began, takes = self._clock(), self._pace.prefill(prompt_tokens)
        if progress is None:
            await waits.until(began + takes)
        else:
            await progress(0.0)
            for step in range(1, _PROGRESS_STEPS) if takes else ():
                await waits.until(began + takes * step / _PROGRESS_STEPS)
                await progress(step / _PROGRESS_STEPS)
            await waits.until(began + takes)
            await progress(1.0)
        self._due = began + takes

    async def next(self, waits: GenerationWaits) -> Token | ScriptedFault | None:
        if self._fault is not None and self._said >= self._fault.after:
            fault, self._fault = self._fault, None
            return fault
        if self._said >= len(self._tokens):
            return None
        at_s = self._pace.at_s
        if self._said < len(at_s):
            begun = self._due if self._said == 0 else self._due - at_s[self._said - 1]
            self._due = begun + at_s[self._said]
        elif self._pace.tokens_per_s:
            gap = 1.0 / self._pace.tokens_per_s
            self._due += gap * (1.0 + self._pace.jitter * self._random.uniform(-1.0, 1.0))
        await waits.until(self._due)
        self._said += 1
        return self._tokens[self._said - 1]
