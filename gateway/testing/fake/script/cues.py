"""Answers that a test leads: the test decides when the next token or fault comes.

While `CuedAnswers` lead, they take every request that generates. The requests are numbered in order of
arrival, and each stays in its prompt until its first cue.
"""

from __future__ import annotations

import asyncio
from collections import deque

from slotgate.gateway.testing.fake.protocols.request import LlamaRequest
from slotgate.gateway.testing.fake.script.answer_content import Token
from slotgate.gateway.testing.fake.script.scene import Reply, ScriptedFault
from slotgate.gateway.testing.fake.script.token_source import (
    GenerationWaits,
    ReportProgress,
    TimedTokens,
    TokenSource,
)

__all__ = ["Cue", "CuedAnswers", "CuedTokens"]

Cue = Token | ScriptedFault | str
"""A token to say, a fault, or the finish reason with which the answer ends."""


class CuedTokens:
    """The tokens of one answer, as a test cues them."""

    def __init__(self, number: int, request: LlamaRequest) -> None:
        self.number = number
        self.request = request
        self.finish = "stop"
        self._cues: deque[Cue] = deque()
        self._come: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<CuedTokens {self.number}, {len(self._cues)} cues waiting>"

    def cue(self, cue: Cue) -> None:
        self._cues.append(cue)
        if self._come is not None and not self._come.done():
            self._come.set_result(None)

    async def prefill(
        self, waits: GenerationWaits, prompt_tokens: int, progress: ReportProgress | None
    ) -> None:
        """Return at the first cue."""
        await self._until_cued(waits)

    async def next(self, waits: GenerationWaits) -> Token | ScriptedFault | None:
        await self._until_cued(waits)
        cue = self._cues.popleft()
        if isinstance(cue, str):
            self.finish = cue
            return None
        return cue

    async def _until_cued(self, waits: GenerationWaits) -> None:
        while not self._cues:
            self._come = asyncio.get_running_loop().create_future()
            await waits.wait(self._come)


class CuedAnswers:
    """Leads the answers of a `FakeLlama`, as its `choose_token_source`."""

    def __init__(self) -> None:
        self.leading = False
        self.sources: list[CuedTokens] = []

    def __call__(self, request: LlamaRequest, reply: Reply, timed: TimedTokens) -> TokenSource:
        if not self.leading:
            return timed
        source = CuedTokens(len(self.sources), request)
        self.sources.append(source)
        return source
