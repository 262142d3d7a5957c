"""The generation of one choice of an answer, from its wait for a slot to its last token.

    wait for a slot -> head (of a stream) -> prompt -> tokens -> end -> slot given back

Like llama-server's slots, a generation does not wait for its client to read. It notices that the client left
at the next write, or through `ClientChecks` while there is nothing to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from slotgate.gateway.testing.fake.model.client_checks import ClientChecks
from slotgate.gateway.testing.fake.model.kv_cache import KvCache
from slotgate.gateway.testing.fake.model.sampling import slot_settings
from slotgate.gateway.testing.fake.model.slots import LlamaSlots
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.chat import ChatFormatter
from slotgate.gateway.testing.fake.protocols.control import LlamaCounters
from slotgate.gateway.testing.fake.protocols.formatter import AnswerFormatter
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind
from slotgate.gateway.testing.fake.script.scene import FaultKind, ScriptedFault
from slotgate.gateway.testing.fake.script.token_source import ReportProgress, TokenSource

__all__ = [
    "AnswerOutput",
    "ChoiceGeneration",
    "ConnectionFault",
    "GenerationFailed",
    "GenerationResources",
]

Result = TypeVar("Result")
_FOREVER_S: Final = 1e9


class GenerationFailed(Exception):
    """The answer ends with this error. In a stream that has begun it becomes an event."""

    def __init__(self, status: int, message: str, kind: str, *, old_form: bool = False) -> None:
        super().__init__(message)
        self.error: Json = {"code": status, "message": message, "type": kind}
        self.status = status
        self.old_form = old_form


class ConnectionFault(Exception):
    """The script ends the answer by a fault of its connection."""

    def __init__(self, fault: ScriptedFault) -> None:
        super().__init__(fault.kind.value)
        self.fault = fault


class AnswerOutput(Protocol):
    """Takes the events of a choice. A stream writes them; a buffered answer drops them."""

    async def begin(self) -> None:
        """Note that the generation has its slot."""
        ...

    async def send(self, events: bytes) -> None: ...

    def check_client(self) -> None:
        """Ping the client if it is due. Raises `Abandoned` if the client has left."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationResources:
    """The parts of a server that all its generations share."""

    slots: LlamaSlots
    client_checks: ClientChecks
    kv_cache: KvCache
    counters: LlamaCounters
    n_ctx: int


class ChoiceGeneration:
    """Runs one choice: takes a slot, and sends the events of its tokens to the output."""

    def __init__(
        self,
        resources: GenerationResources,
        formatter: AnswerFormatter,
        source: TokenSource,
        output: AnswerOutput,
        wanted: int | None = None,
        *,
        endless: bool = False,
    ) -> None:
        """`wanted` is the id of the only slot that may be used. `endless` leaves out the last event."""
        self._resources = resources
        self.formatter = formatter
        self._source = source
        self._output = output
        self._wanted = wanted
        self._endless = endless
        self._abort: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """End the generation, because the shared cache is full."""
        if not self._abort.done():
            self._abort.set_result(None)

    async def run(self) -> None:
        """Return after the last token. Raises `Abandoned`, `GenerationFailed` and `ConnectionFault`."""
        resources = self._resources
        claim = resources.slots.take(self._wanted)
        try:
            self.formatter.answer.slot = await resources.client_checks.wait(
                claim.granted, self._output.check_client
            )
            resources.slots.work[self.formatter.answer.slot] = self._slot_work()
            resources.kv_cache.use(self, self._length)
            await self._output.begin()
            await self._generate()
        finally:
            resources.kv_cache.leave(self)
            resources.slots.release(claim)

    # -- GenerationWaits

    async def until(self, when: float) -> None:
        await self._resources.client_checks.until(when, self._check_client, self._abort)
        self._raise_if_aborted()

    async def wait(self, future: asyncio.Future[Result]) -> Result:
        result = await self._resources.client_checks.wait(future, self._check_client, self._abort)
        self._raise_if_aborted()
        return result

    # -- the parts

    @property
    def _length(self) -> int:
        answer = self.formatter.answer
        return answer.context.prompt_tokens + answer.predicted

    async def _generate(self) -> None:
        resources, answer = self._resources, self.formatter.answer
        await self._source.prefill(self, answer.context.prompt_tokens, self._progress_report())
        resources.counters.prompt_tokens += answer.context.prompt_tokens - answer.context.cached_tokens
        resources.counters.cached_tokens += answer.context.cached_tokens
        while (cue := await self._source.next(self)) is not None:
            self._raise_if_aborted()
            if isinstance(cue, ScriptedFault):
                await self._apply_fault(cue)
                continue
            await self._add_token(cue)
            if self._length >= resources.n_ctx:
                answer.finish = "length"
                break
        else:
            answer.finish = self._source.finish
        for events in self.formatter.finish():
            await self._output.send(_without_the_last(events) if self._endless else events)

    def _slot_work(self) -> Json:
        context = self.formatter.answer.context
        self._resources.counters.tasks += 1
        return {
            "id_task": self._resources.counters.tasks,
            "n_prompt_tokens": context.prompt_tokens,
            "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": context.cached_tokens,
            "params": slot_settings(context.body, context.limit, stream=context.stream),
            "next_token": [
                {"has_next_token": False, "has_new_line": False, "n_remain": context.limit, "n_decoded": 0}
            ],
        }

    def _progress_report(self) -> ReportProgress | None:
        """Return the function that reports progress of the prompt, or None if it was not asked for."""
        formatter, context = self.formatter, self.formatter.answer.context
        if not isinstance(formatter, ChatFormatter) or not context.body.get("return_progress"):
            return None
        to_read = context.prompt_tokens - context.cached_tokens

        async def send(share: float) -> None:
            await self._output.send(formatter.progress(context.cached_tokens + round(share * to_read)))

        return send

    async def _add_token(self, token: Token) -> None:
        resources = self._resources
        await self._output.send(self.formatter.add(token))
        resources.counters.predicted += 1
        resources.counters.longest = max(resources.counters.longest, self._length)
        resources.kv_cache.use(self, self._length)
        self._raise_if_aborted()

    async def _apply_fault(self, fault: ScriptedFault) -> None:
        match fault.kind:
            case FaultKind.ERROR_FRAME | FaultKind.OLD_ERROR_FRAME | FaultKind.ERROR:
                old_form = fault.kind is FaultKind.OLD_ERROR_FRAME
                raise GenerationFailed(fault.status, fault.message, fault.type, old_form=old_form)
            case FaultKind.KV_EXHAUSTED:
                self._resources.kv_cache.exhaust()
                self._raise_if_aborted()
            case FaultKind.STALL:
                seconds = _FOREVER_S if fault.seconds is None else fault.seconds
                await self.until(asyncio.get_running_loop().time() + seconds)
            case FaultKind.GIANT_FRAME:
                await self._add_token(Token(TokenKind.TEXT, "x" * (fault.bytes or 1 << 20)))
            case FaultKind.GARBAGE:
                await self._output.send(b'data: {"choices":[{"delta":{"content":\n\n')
            case _:
                raise ConnectionFault(fault)

    def _check_client(self) -> None:
        self._raise_if_aborted()
        self._output.check_client()

    def _raise_if_aborted(self) -> None:
        if self._abort.done():
            raise GenerationFailed(500, "Context size has been exceeded.", "server_error")


async def run_all(generations: Sequence[ChoiceGeneration]) -> None:
    """Run the generations concurrently. The first error ends all of them and is raised."""
    if len(generations) == 1:
        await generations[0].run()
        return
    tasks = [asyncio.ensure_future(generation.run()) for generation in generations]
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
