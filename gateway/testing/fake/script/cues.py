"""Answers led by a test: it says the next token, holds the prompt, fails now.

While `Hands` lead, every request that generates is theirs: numbered in order of arrival, silent in its prompt
until the first cue.
"""

from __future__ import annotations

import asyncio
from collections import deque

from slotgate.gateway.testing.fake.protocols.request import Asked
from slotgate.gateway.testing.fake.script.answer_content import Token
from slotgate.gateway.testing.fake.script.scene import Fault, Reply
from slotgate.gateway.testing.fake.script.token_source import Progress, Score, TimedScore, Waits

__all__ = ["Cue", "HandScore", "Hands"]

Cue = Token | Fault | str
"""A token to say, a fault, or the reason for which the answer ends."""


class HandScore:
    """The score of one answer."""

    def __init__(self, number: int, asked: Asked) -> None:
        self.number = number
        self.asked = asked
        self.finish = "stop"
        self._cues: deque[Cue] = deque()
        self._come: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<HandScore {self.number}, {len(self._cues)} cues waiting>"

    def cue(self, cue: Cue) -> None:
        self._cues.append(cue)
        if self._come is not None and not self._come.done():
            self._come.set_result(None)

    async def prefill(self, waits: Waits, prompt_tokens: int, progress: Progress | None) -> None:
        """The prompt has been read when there is something to say."""
        await self._something(waits)

    async def next(self, waits: Waits) -> Token | Fault | None:
        await self._something(waits)
        cue = self._cues.popleft()
        if isinstance(cue, str):
            self.finish = cue
            return None
        return cue

    async def _something(self, waits: Waits) -> None:
        while not self._cues:
            self._come = asyncio.get_running_loop().create_future()
            await waits.wait(self._come)


class Hands:
    """Leads the answers of a `FakeLlama`, as its `score_of`."""

    def __init__(self) -> None:
        self.leading = False
        self.scores: list[HandScore] = []

    def __call__(self, asked: Asked, reply: Reply, timed: TimedScore) -> Score:
        if not self.leading:
            return timed
        score = HandScore(len(self.scores), asked)
        self.scores.append(score)
        return score
