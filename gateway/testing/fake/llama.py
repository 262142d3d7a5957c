"""A scripted llama-server without its sockets: requests in, bytes out, slots and clocks between.

    request -> control plane | question (`asked`) -> reply of the script (`choosing`) -> performances -> line

Rules: what a client does is noticed only as llama-server would notice it; all randomness comes from the seed
and the request, so that the same request gets the same bytes whatever happens beside it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slotgate.gateway.testing.fake.model.client_checks import Abandoned, Attention
from slotgate.gateway.testing.fake.model.generation import Failed, House, KvPool, Performance, Struck, all_of
from slotgate.gateway.testing.fake.model.output import OPENING_OF_SEVERAL, Stream, Whole
from slotgate.gateway.testing.fake.model.slots import Slots
from slotgate.gateway.testing.fake.net.http1 import Message
from slotgate.gateway.testing.fake.net.wire import (
    DONE,
    OPTIONS_ANSWER,
    Problem,
    answer,
    file_not_found,
    loading,
    old_error,
)
from slotgate.gateway.testing.fake.net.writer import Line, ToOrigin
from slotgate.gateway.testing.fake.protocols.answer import Told, Voice
from slotgate.gateway.testing.fake.protocols.control import CONTROL_PATHS, Counters, control_answer
from slotgate.gateway.testing.fake.protocols.formatter import Teller
from slotgate.gateway.testing.fake.protocols.formatters import TELLERS, together
from slotgate.gateway.testing.fake.protocols.lookups import looked_up
from slotgate.gateway.testing.fake.protocols.request import DOORS, Asked, Door, asked
from slotgate.gateway.testing.fake.protocols.vectors import COMPUTED
from slotgate.gateway.testing.fake.script.answer_content import seeded_id
from slotgate.gateway.testing.fake.script.matching import Choosing
from slotgate.gateway.testing.fake.script.reply_tokens import prompt_length, tokens_of
from slotgate.gateway.testing.fake.script.scene import Fault, FaultKind, Reply, Scene
from slotgate.gateway.testing.fake.script.token_source import Score, TimedScore

__all__ = ["Exchange", "FakeLlama", "ScoreOf"]

KEPT: Final = 1000
MIB: Final = 1 << 20
_SENTINEL_DOORS: Final = frozenset({Door.CHAT, Door.TEXT, Door.SPEECH})

ScoreOf = Callable[[Asked, Reply, TimedScore], Score]
"""Lets a test lead: the score that is played instead of the script's."""


@dataclass(slots=True)
class Exchange:
    """One request that asked for work, and what became of it."""

    asked: Asked
    request_id: str
    reply: Reply
    status: int | None = None
    outcome: str = "running"
    """`complete`, `failed`, `abandoned`, `unmatched`, or the name of the fault that ended it."""
    scripted: bool = False
    """It failed because the script says so."""

    @property
    def named(self) -> str:
        return f"{self.asked.path} {self.asked.model or ''} {self.asked.said[:80]!r}"


class FakeLlama:
    """Belongs to the running event loop."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        machine = scene.machine
        self.slots = Slots(machine.slots)
        self.counters = Counters()
        self.exchanges: deque[Exchange] = deque(maxlen=KEPT)
        """The last ones, with their bodies."""
        self.meant_to_fail: set[str] = set()
        """Ids of all requests that failed because the script says so."""
        self.unmatched: list[str] = []
        """Requests that a strict script does not know, in words."""
        self.loading = False
        self.crashes = 0
        self.score_of: ScoreOf | None = None
        self.on_crash: Callable[[float], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        self._choosing = Choosing(scene)
        self._seen: Counter[bytes] = Counter()
        """How often each body came, by its digest."""
        pool = KvPool(machine.n_ctx if machine.kv_unified else machine.n_ctx * machine.slots)
        self._house = House(self.slots, Attention(machine.quiet_s), pool, self.counters, machine.n_ctx)

    def __repr__(self) -> str:
        return f"<FakeLlama {self.slots!r}, {len(self.exchanges)} exchanges, loading: {self.loading}>"

    async def answer(self, request: Message, line: Line) -> bool:
        """Answer one request. Returns whether the connection may be used for another."""
        method, _, target = request.head.start_line.partition(b" ")
        path, _, query = target.split(b" ")[0].decode("latin-1").partition("?")
        if origin := request.head.get(b"origin") or b"":
            line = ToOrigin(line, origin)
        only_head = method == b"HEAD"
        try:
            if self.loading:
                raise loading()
            if method == b"OPTIONS":
                return _written(line, OPTIONS_ANSWER)
            self._authorize(request, path)
            if method in (b"GET", b"HEAD") and path in CONTROL_PATHS:
                return self._control(path, query, line, only_head=only_head)
            if method == b"POST" and path == "/props":
                raise Problem(501, _PROPS_ARE_FIXED, "not_supported_error")
            if method != b"POST" or path not in DOORS:
                raise file_not_found()
            return await self._work(asked(path, request.body, self.scene.machine), request, line)
        except Problem as problem:
            after = (b"Accept-Ranges: bytes",) if only_head else ()
            line.write(answer(problem.status, problem.body, after=after, only_head=only_head))
            return False

    def play(self, scene: Scene) -> None:
        """Go on with other replies. The machine stays as it is; what has matched is counted anew."""
        self.scene = dataclasses.replace(scene, machine=self.scene.machine)
        self._choosing = Choosing(self.scene)

    # -- the control plane

    def _authorize(self, request: Message, path: str) -> None:
        key = self.scene.machine.api_key.encode()
        if not key or path in ("/health", "/v1/health", "/v1/models", "/models"):
            return
        bearer = (request.head.get(b"authorization") or b"").removeprefix(b"Bearer ")
        if key not in (bearer, request.head.get(b"x-api-key")):
            raise Problem(401, "Invalid API Key", "authentication_error", code_last=True)

    def _control(self, path: str, query: str, line: Line, *, only_head: bool) -> bool:
        if path in ("/slots", "/metrics"):
            self._house.attention.result()
        content = control_answer(path, query, self.scene, self.slots, self.counters, only_head=only_head)
        return _written(line, content)

    # -- work

    async def _work(self, question: Asked, request: Message, line: Line) -> bool:
        if not question.door.takes_slot:
            return _written(line, answer(200, looked_up(question)))
        reply = self._choosing.reply(question, request.head)
        request_id = (request.head.get(b"x-request-id") or b"").decode("latin-1")
        exchange = Exchange(question, request_id, reply or Reply())
        self.exchanges.append(exchange)
        self.on_change()
        if reply is None:
            exchange.status, exchange.outcome = 404, "unmatched"
            self.unmatched.append(exchange.named)
            raise Problem(404, "no reply of the script matches", "not_found_error")
        try:
            self._refuse(question, reply)
            if parse_s := self.scene.machine.parse_s_per_mib * len(request.body) / MIB:
                await asyncio.sleep(parse_s)
            if question.door.generates:
                return await self._generate(question, reply, request, line, exchange)
            return await self._compute(question, reply, line, exchange)
        except Problem as problem:
            exchange.status, exchange.outcome = problem.status, "failed"
            exchange.scripted = reply.fault is not None
            raise
        except Abandoned:
            exchange.outcome = "abandoned"
            return False
        finally:
            self._note(exchange)
            self.on_change()

    def _note(self, exchange: Exchange) -> None:
        if exchange.scripted:
            self.meant_to_fail.add(exchange.request_id)

    def _refuse(self, question: Asked, reply: Reply) -> None:
        fault = reply.fault
        if fault is not None and fault.kind is FaultKind.LOADING:
            raise loading()
        if fault is not None and fault.kind is FaultKind.ERROR and fault.after == 0:
            raise Problem(fault.status, fault.message, fault.type)
        n_ctx = self.scene.machine.n_ctx
        longest = max(prompt_length(prompt, reply) for prompt in question.prompts)
        if longest >= n_ctx:
            message = f"request ({longest} tokens) exceeds the available context size ({n_ctx} tokens)"
            raise Problem(
                400,
                f"{message}, try increasing it",
                "exceed_context_size_error",
                n_prompt_tokens=longest,
                n_ctx=n_ctx,
            )

    async def _generate(
        self, question: Asked, reply: Reply, request: Message, line: Line, exchange: Exchange
    ) -> bool:
        generator = self._generator(request)
        stream = self._stream(question, reply, request, line) if question.stream else None
        performances = self._performances(question, reply, generator, stream or Whole(line))
        tellers = [performance.teller for performance in performances]
        exchange.status = 200
        try:
            await all_of(performances)
        except Failed as failed:
            exchange.outcome, exchange.status, exchange.scripted = "failed", failed.status, True
            self._note(exchange)
            if stream is None or not stream.begun:
                raise Problem(failed.status, failed.error["message"], failed.error["type"]) from failed
            stream.fail(old_error(failed.error) if failed.old_form else tellers[0].failed(failed.error))
            return False
        except Struck as struck:
            exchange.outcome, exchange.scripted = struck.fault.kind.value, True
            self._note(exchange)
            self._strike(struck.fault, line, tellers, streaming=stream is not None)
            return False
        self._house.attention.result()
        exchange.outcome = "complete"
        if stream is not None:
            return await self._end(question, reply, stream, exchange)
        return self._tell_whole(question, reply, tellers, line, exchange)

    def _stream(self, question: Asked, reply: Reply, request: Message, line: Line) -> Stream:
        asked_ping = question.body.get("sse_ping_interval")
        ping_s = float(asked_ping) if isinstance(asked_ping, int | float) else self.scene.machine.ping_s
        stream = Stream(line, self._house.attention, reply.fault, ping_s)
        if isinstance(question.body.get("prompt"), list) and len(question.prompts) > 1:
            stream.opening = OPENING_OF_SEVERAL
        return stream

    async def _end(self, question: Asked, reply: Reply, stream: Stream, exchange: Exchange) -> bool:
        kind = reply.fault.kind if reply.fault else None
        if question.door in _SENTINEL_DOORS and kind is not FaultKind.NO_DONE:
            await stream.tell(DONE)
        if kind is FaultKind.SLOW_CLOSE and reply.fault is not None:
            await asyncio.sleep(reply.fault.seconds or 0.0)
        exchange.scripted = kind is FaultKind.NO_DONE
        stream.end()
        return False

    def _tell_whole(
        self, question: Asked, reply: Reply, tellers: list[Teller], line: Line, exchange: Exchange
    ) -> bool:
        if line.gone:
            raise Abandoned
        content = answer(200, together(question, tellers))
        if reply.fault is not None and reply.fault.kind is FaultKind.WRONG_LENGTH:
            _, _, body = content.partition(b"\r\n\r\n")
            wrong = len(body) + (reply.fault.bytes or 10)
            exchange.scripted = True
            line.write(answer(200, body, length=wrong))
            line.finish()
            return False
        return _written(line, content)

    def _strike(self, fault: Fault, line: Line, tellers: list[Teller], *, streaming: bool) -> None:
        if fault.kind is FaultKind.CRASH:
            self.crashes += 1
            for running in self.exchanges:
                running.scripted = running.scripted or running.outcome == "running"
                self._note(running)
            self.on_crash(fault.seconds or 0.0)
        elif fault.kind is FaultKind.RST:
            line.reset()
        else:
            if not streaming:
                whole = answer(200, tellers[0].whole())
                line.write(whole[: -max(1, len(whole) // 4)])
            line.finish()

    def _performances(
        self, question: Asked, reply: Reply, generator: random.Random, telling: Stream | Whole
    ) -> list[Performance]:
        teller_of = TELLERS[question.door]
        id_slot = question.body.get("id_slot")
        wanted = id_slot if isinstance(id_slot, int) and id_slot >= 0 else None
        shared_id = seeded_id(generator)
        endless = reply.fault is not None and reply.fault.kind is FaultKind.NO_DONE
        endless = endless and question.door not in _SENTINEL_DOORS
        found = []
        for index, prompt in enumerate(question.prompts):
            speech, finish = tokens_of(question, reply, generator)
            voice = Voice(
                model=self.scene.machine.model,
                prompt=prompt,
                prompt_tokens=prompt_length(prompt, reply),
                cached_tokens=min(reply.cached_tokens, prompt_length(prompt, reply) - 1),
                limit=-1 if question.limit is None else question.limit,
                body=question.body,
                random=generator,
                id=shared_id,
                token_ms=1000 / reply.pace.tokens_per_s if reply.pace.tokens_per_s else 5.0,
                prompt_ms=1000 * reply.pace.prefill(prompt_length(prompt, reply)) or 1.0,
            )
            timed = TimedScore(speech, finish, reply.pace, reply.fault, generator)
            score = timed if self.score_of is None else self.score_of(question, reply, timed)
            teller = teller_of(Told(voice, index))
            found.append(Performance(self._house, teller, score, telling, wanted, endless=endless))
        self.on_change()
        return found

    async def _compute(self, question: Asked, reply: Reply, line: Line, exchange: Exchange) -> bool:
        """Embeddings and ranks: a slot for each, for as long as its prompt takes."""
        whole = Whole(line)
        attention, loop = self._house.attention, asyncio.get_running_loop()

        async def one(prompt: str) -> None:
            place = self.slots.take()
            try:
                await attention.wait(place.granted, whole.look)
                takes = reply.pace.prefill(prompt_length(prompt, reply))
                await attention.until(loop.time() + takes, whole.look)
            finally:
                self.slots.give_back(place)

        await asyncio.gather(*map(one, question.prompts))
        attention.result()
        if line.gone:
            raise Abandoned
        exchange.status, exchange.outcome = 200, "complete"
        return _written(line, answer(200, COMPUTED[question.door](question, self.scene.machine)))

    def _generator(self, request: Message) -> random.Random:
        """From the seed, what is asked, and how often it has been asked."""
        digest = hashlib.blake2b(request.body, digest_size=16).digest()
        self._seen[digest] += 1
        return random.Random(b"%d %d %b" % (self.scene.machine.seed, self._seen[digest], digest))


_PROPS_ARE_FIXED: Final = "This server does not support changing global properties. Start it with `--props`"


def _written(line: Line, content: bytes) -> bool:
    line.write(content)
    return True
