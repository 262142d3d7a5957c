"""One choice of one answer: from its place in the line to its last token.

    wait for a slot -> head (of a stream) -> prompt -> tokens -> end -> slot given back

Nothing waits for the client to read: llama-server's slots do not either. Its leaving is noticed at the next
write, or by `Attention` while there is nothing to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from slotgate.gateway.testing.fake.model.client_checks import Attention
from slotgate.gateway.testing.fake.model.sampling import at_work
from slotgate.gateway.testing.fake.model.slots import Slots
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.chat import ChatTeller
from slotgate.gateway.testing.fake.protocols.control import Counters
from slotgate.gateway.testing.fake.protocols.formatter import Teller
from slotgate.gateway.testing.fake.script.answer_content import Kind, Token
from slotgate.gateway.testing.fake.script.scene import Fault, FaultKind
from slotgate.gateway.testing.fake.script.token_source import Progress, Score

__all__ = ["Failed", "House", "KvPool", "Performance", "Struck", "Telling"]

Result = TypeVar("Result")
_FOREVER_S: Final = 1e9


class Failed(Exception):
    """The answer ends in this error; told inside the stream where one has begun."""

    def __init__(self, status: int, message: str, kind: str, *, old_form: bool = False) -> None:
        super().__init__(message)
        self.error: Json = {"code": status, "message": message, "type": kind}
        self.status = status
        self.old_form = old_form


class Struck(Exception):
    """The answer ends by what a script does to its connection."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.kind.value)
        self.fault = fault


class Telling(Protocol):
    """Where the events of a choice go: into a stream, or nowhere until all has been said."""

    async def begin(self) -> None:
        """A slot has been taken."""
        ...

    async def tell(self, events: bytes) -> None: ...

    def look(self) -> None:
        """Nothing has happened for a while: notice who left, ping who waits. Raises `Abandoned`."""
        ...


class KvPool:
    """One pool of cells for all slots, as with a unified cache. Full, it ends whatever runs."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._used: dict[Performance, int] = {}

    def use(self, performance: Performance, cells: int) -> None:
        self._used[performance] = cells
        if sum(self._used.values()) > self.cells:
            self.exhaust()

    def exhaust(self) -> None:
        for performance in list(self._used):
            performance.doom()

    def leave(self, performance: Performance) -> None:
        self._used.pop(performance, None)


@dataclass(frozen=True, slots=True)
class House:
    """What all answers of a server share."""

    slots: Slots
    attention: Attention
    pool: KvPool
    counters: Counters
    n_ctx: int


class Performance:
    def __init__(
        self,
        house: House,
        teller: Teller,
        score: Score,
        telling: Telling,
        wanted: int | None = None,
        *,
        endless: bool = False,
    ) -> None:
        """`wanted` is the slot that it must be. `endless` leaves out the last event."""
        self._house = house
        self.teller = teller
        self._score = score
        self._telling = telling
        self._wanted = wanted
        self._endless = endless
        self._doom: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def doom(self) -> None:
        """The shared pool is exhausted."""
        if not self._doom.done():
            self._doom.set_result(None)

    async def play(self) -> None:
        """Return when all is said. Raises `Abandoned`, `Failed` and `Struck`."""
        house = self._house
        place = house.slots.take(self._wanted)
        try:
            self.teller.told.slot = await house.attention.wait(place.granted, self._telling.look)
            house.slots.work[self.teller.told.slot] = self._work()
            house.pool.use(self, self._length)
            await self._telling.begin()
            await self._perform()
        finally:
            house.pool.leave(self)
            house.slots.give_back(place)

    # -- how a score waits

    async def until(self, when: float) -> None:
        await self._house.attention.until(when, self._look, self._doom)
        self._survive()

    async def wait(self, happening: asyncio.Future[Result]) -> Result:
        result = await self._house.attention.wait(happening, self._look, self._doom)
        self._survive()
        return result

    # -- the parts

    @property
    def _length(self) -> int:
        told = self.teller.told
        return told.voice.prompt_tokens + told.predicted

    async def _perform(self) -> None:
        house, told = self._house, self.teller.told
        await self._score.prefill(self, told.voice.prompt_tokens, self._progress())
        house.counters.prompt_tokens += told.voice.prompt_tokens - told.voice.cached_tokens
        house.counters.cached_tokens += told.voice.cached_tokens
        while (cue := await self._score.next(self)) is not None:
            self._survive()
            if isinstance(cue, Fault):
                await self._strike(cue)
                continue
            await self._say(cue)
            if self._length >= house.n_ctx:
                told.finish = "length"
                break
        else:
            told.finish = self._score.finish
        for events in self.teller.end():
            await self._telling.tell(_without_the_last(events) if self._endless else events)

    def _work(self) -> Json:
        voice = self.teller.told.voice
        self._house.counters.tasks += 1
        return {
            "id_task": self._house.counters.tasks,
            "n_prompt_tokens": voice.prompt_tokens,
            "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": voice.cached_tokens,
            "params": at_work(voice.body, voice.limit, stream=voice.stream),
            "next_token": [
                {"has_next_token": False, "has_new_line": False, "n_remain": voice.limit, "n_decoded": 0}
            ],
        }

    def _progress(self) -> Progress | None:
        """Of the prompt, for a request that wants to hear of it."""
        teller, voice = self.teller, self.teller.told.voice
        if not isinstance(teller, ChatTeller) or not voice.body.get("return_progress"):
            return None
        to_read = voice.prompt_tokens - voice.cached_tokens

        async def tell(share: float) -> None:
            await self._telling.tell(teller.progress(voice.cached_tokens + round(share * to_read)))

        return tell

    async def _say(self, token: Token) -> None:
        house = self._house
        await self._telling.tell(self.teller.say(token))
        house.counters.predicted += 1
        house.counters.longest = max(house.counters.longest, self._length)
        house.pool.use(self, self._length)
        self._survive()

    async def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.ERROR_FRAME | FaultKind.OLD_ERROR_FRAME | FaultKind.ERROR:
                old_form = fault.kind is FaultKind.OLD_ERROR_FRAME
                raise Failed(fault.status, fault.message, fault.type, old_form=old_form)
            case FaultKind.KV_EXHAUSTED:
                self._house.pool.exhaust()
                self._survive()
            case FaultKind.STALL:
                seconds = _FOREVER_S if fault.seconds is None else fault.seconds
                await self.until(asyncio.get_running_loop().time() + seconds)
            case FaultKind.GIANT_FRAME:
                await self._say(Token(Kind.TEXT, "x" * (fault.bytes or 1 << 20)))
            case FaultKind.GARBAGE:
                await self._telling.tell(b'data: {"choices":[{"delta":{"content":\n\n')
            case _:
                raise Struck(fault)

    def _look(self) -> None:
        self._survive()
        self._telling.look()

    def _survive(self) -> None:
        if self._doom.done():
            raise Failed(500, "Context size has been exceeded.", "server_error")


async def all_of(performances: Sequence[Performance]) -> None:
    """Play them side by side. What ends one ends all, and is raised as it is."""
    if len(performances) == 1:
        await performances[0].play()
        return
    tasks = [asyncio.ensure_future(performance.play()) for performance in performances]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _without_the_last(events: bytes) -> bytes:
    return events[: events.rstrip(b"\n").rfind(b"\n\n") + 2] if b"\n\n" in events.rstrip(b"\n") else b""
