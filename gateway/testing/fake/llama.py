"""A scripted llama-server without its sockets: it turns requests into bytes, and knows slots and clocks.

    message -> control plane
            -> LlamaRequest -> Reply of the script -> one ChoiceGeneration a choice -> ResponseWriter

It notices a client's leaving only when llama-server would notice it. All randomness comes from the seed and
the request, so equal requests get equal bytes, whatever runs beside them.
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

from slotgate.gateway.testing.fake.model.client_checks import Abandoned, ClientChecks
from slotgate.gateway.testing.fake.model.generation import (
    ChoiceGeneration,
    ConnectionFault,
    GenerationFailed,
    GenerationResources,
    run_all,
)
from slotgate.gateway.testing.fake.model.kv_cache import KvCache
from slotgate.gateway.testing.fake.model.output import OPENING_OF_SEVERAL, BufferedOutput, StreamOutput
from slotgate.gateway.testing.fake.model.slots import LlamaSlots
from slotgate.gateway.testing.fake.net.http1 import Message
from slotgate.gateway.testing.fake.net.wire import (
    DONE,
    OPTIONS_ANSWER,
    LlamaRefusal,
    answer,
    file_not_found,
    loading,
    old_error_event,
)
from slotgate.gateway.testing.fake.net.writer import OriginWriter, ResponseWriter
from slotgate.gateway.testing.fake.protocols.answer import AnswerContext, GeneratedAnswer
from slotgate.gateway.testing.fake.protocols.control import CONTROL_PATHS, LlamaCounters, control_answer
from slotgate.gateway.testing.fake.protocols.endpoints import LLAMA_ENDPOINTS, LlamaEndpoint
from slotgate.gateway.testing.fake.protocols.formatter import AnswerFormatter
from slotgate.gateway.testing.fake.protocols.formatters import FORMATTERS, combined_answer
from slotgate.gateway.testing.fake.protocols.lookups import lookup_answer
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest, parse_request
from slotgate.gateway.testing.fake.protocols.vectors import VECTOR_ANSWERS
from slotgate.gateway.testing.fake.script.answer_content import seeded_id
from slotgate.gateway.testing.fake.script.matching import ReplyMatcher
from slotgate.gateway.testing.fake.script.reply_tokens import prompt_length, tokens_of
from slotgate.gateway.testing.fake.script.scene import FaultKind, Reply, Scene, ScriptedFault
from slotgate.gateway.testing.fake.script.token_source import TimedTokens, TokenSource

__all__ = ["ChooseTokenSource", "FakeLlama", "ServedRequest"]

KEPT: Final = 1000
MIB: Final = 1 << 20
_SENTINEL_ENDPOINTS: Final = frozenset({LlamaEndpoint.CHAT, LlamaEndpoint.TEXT, LlamaEndpoint.SPEECH})

ChooseTokenSource = Callable[[LlamaRequest, Reply, TimedTokens], TokenSource]
"""Replaces the tokens of a script, which it is given, by tokens that a test provides."""


@dataclass(slots=True)
class ServedRequest:
    """A request that asked for work, and its outcome."""

    request: LlamaRequest
    request_id: str
    reply: Reply
    status: int | None = None
    outcome: str = "running"
    """`complete`, `failed`, `abandoned`, `unmatched`, or the name of the fault that ended it."""
    scripted: bool = False
    """The request failed because the script made it fail."""

    @property
    def summary(self) -> str:
        return f"{self.request.path} {self.request.model or ''} {self.request.last_user_text[:80]!r}"


class FakeLlama:
    """The llama-server behind the sockets. It belongs to the running event loop."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        machine = scene.machine
        self.slots = LlamaSlots(machine.slots)
        self.counters = LlamaCounters()
        self.served_requests: deque[ServedRequest] = deque(maxlen=KEPT)
        """The latest requests, with their bodies."""
        self.meant_to_fail: set[str] = set()
        """Ids of all requests that the script made fail."""
        self.unmatched: list[str] = []
        """Descriptions of the requests that no reply of a strict script matched."""
        self.loading = False
        self.crashes = 0
        self.choose_token_source: ChooseTokenSource | None = None
        self.on_crash: Callable[[float], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        self._matcher = ReplyMatcher(scene)
        self._seen: Counter[bytes] = Counter()
        """Digest of a request body -> the number of requests with that body."""
        kv_cache = KvCache(machine.n_ctx if machine.kv_unified else machine.n_ctx * machine.slots)
        self._resources = GenerationResources(
            self.slots, ClientChecks(machine.quiet_s), kv_cache, self.counters, machine.n_ctx
        )

    def __repr__(self) -> str:
        return f"<FakeLlama {self.slots!r}, {len(self.served_requests)} requests, loading: {self.loading}>"

    async def answer(self, message: Message, writer: ResponseWriter) -> bool:
        """Answer one request. Return True if the connection may carry another request."""
        method, _, target = message.head.start_line.partition(b" ")
        path, _, query = target.split(b" ")[0].decode("latin-1").partition("?")
        if origin := message.head.get(b"origin") or b"":
            writer = OriginWriter(writer, origin)
        only_head = method == b"HEAD"
        try:
            if self.loading:
                raise loading()
            if method == b"OPTIONS":
                return _write(writer, OPTIONS_ANSWER)
            self._authorize(message, path)
            if method in (b"GET", b"HEAD") and path in CONTROL_PATHS:
                return self._control(path, query, writer, only_head=only_head)
            if method == b"POST" and path == "/props":
                raise LlamaRefusal(501, _PROPS_ARE_FIXED, "not_supported_error")
            if method != b"POST" or path not in LLAMA_ENDPOINTS:
                raise file_not_found()
            return await self._work(parse_request(path, message.body, self.scene.machine), message, writer)
        except LlamaRefusal as refusal:
            after = (b"Accept-Ranges: bytes",) if only_head else ()
            writer.write(answer(refusal.status, refusal.body, after=after, only_head=only_head))
            return False

    def replace_replies(self, scene: Scene) -> None:
        """Use the replies of another scene from now on. The machine stays; matches are counted from zero."""
        self.scene = dataclasses.replace(scene, machine=self.scene.machine)
        self._matcher = ReplyMatcher(self.scene)

    # -- the control plane

    def _authorize(self, message: Message, path: str) -> None:
        key = self.scene.machine.api_key.encode()
        if not key or path in ("/health", "/v1/health", "/v1/models", "/models"):
            return
        bearer = (message.head.get(b"authorization") or b"").removeprefix(b"Bearer ")
        if key not in (bearer, message.head.get(b"x-api-key")):
            raise LlamaRefusal(401, "Invalid API Key", "authentication_error", code_last=True)

    def _control(self, path: str, query: str, writer: ResponseWriter, *, only_head: bool) -> bool:
        if path in ("/slots", "/metrics"):
            self._resources.client_checks.note_result()
        content = control_answer(path, query, self.scene, self.slots, self.counters, only_head=only_head)
        return _write(writer, content)

    # -- work

    async def _work(self, request: LlamaRequest, message: Message, writer: ResponseWriter) -> bool:
        if not request.endpoint.takes_slot:
            return _write(writer, answer(200, lookup_answer(request)))
        reply = self._matcher.reply(request, message.head)
        request_id = (message.head.get(b"x-request-id") or b"").decode("latin-1")
        served = ServedRequest(request, request_id, reply or Reply())
        self.served_requests.append(served)
        self.on_change()
        if reply is None:
            served.status, served.outcome = 404, "unmatched"
            self.unmatched.append(served.summary)
            raise LlamaRefusal(404, "no reply of the script matches", "not_found_error")
        try:
            self._refuse(request, reply)
            if parse_s := self.scene.machine.parse_s_per_mib * len(message.body) / MIB:
                await asyncio.sleep(parse_s)
            if request.endpoint.generates:
                return await self._generate(request, reply, message, writer, served)
            return await self._compute(request, reply, writer, served)
        except LlamaRefusal as refusal:
            served.status, served.outcome = refusal.status, "failed"
            served.scripted = reply.fault is not None
            raise
        except Abandoned:
            served.outcome = "abandoned"
            return False
        finally:
            self._note_scripted(served)
            self.on_change()

    def _note_scripted(self, served: ServedRequest) -> None:
        if served.scripted:
            self.meant_to_fail.add(served.request_id)

    def _refuse(self, request: LlamaRequest, reply: Reply) -> None:
        fault = reply.fault
        if fault is not None and fault.kind is FaultKind.LOADING:
            raise loading()
        if fault is not None and fault.kind is FaultKind.ERROR and fault.after == 0:
            raise LlamaRefusal(fault.status, fault.message, fault.type)
        n_ctx = self.scene.machine.n_ctx
        longest = max(prompt_length(prompt, reply) for prompt in request.prompts)
        if longest >= n_ctx:
            text = f"request ({longest} tokens) exceeds the available context size ({n_ctx} tokens)"
            raise LlamaRefusal(
                400,
                f"{text}, try increasing it",
                "exceed_context_size_error",
                n_prompt_tokens=longest,
                n_ctx=n_ctx,
            )

    async def _generate(
        self,
        request: LlamaRequest,
        reply: Reply,
        message: Message,
        writer: ResponseWriter,
        served: ServedRequest,
    ) -> bool:
        generator = self._generator(message)
        stream = self._stream(request, reply, message, writer) if request.stream else None
        generations = self._generations(request, reply, generator, stream or BufferedOutput(writer))
        formatters = [generation.formatter for generation in generations]
        served.status = 200
        try:
            await run_all(generations)
        except GenerationFailed as failed:
            served.outcome, served.status, served.scripted = "failed", failed.status, True
            self._note_scripted(served)
            if stream is None or not stream.begun:
                raise LlamaRefusal(failed.status, failed.error["message"], failed.error["type"]) from failed
            stream.fail(
                old_error_event(failed.error) if failed.old_form else formatters[0].error_event(failed.error)
            )
            return False
        except ConnectionFault as caught:
            served.outcome, served.scripted = caught.fault.kind.value, True
            self._note_scripted(served)
            self._apply_fault(caught.fault, writer, formatters, streaming=stream is not None)
            return False
        self._resources.client_checks.note_result()
        served.outcome = "complete"
        if stream is not None:
            return await self._end(request, reply, stream, served)
        return self._send_buffered(request, reply, formatters, writer, served)

    def _stream(
        self, request: LlamaRequest, reply: Reply, message: Message, writer: ResponseWriter
    ) -> StreamOutput:
        asked_ping = request.body.get("sse_ping_interval")
        ping_s = float(asked_ping) if isinstance(asked_ping, int | float) else self.scene.machine.ping_s
        stream = StreamOutput(writer, self._resources.client_checks, reply.fault, ping_s)
        if isinstance(request.body.get("prompt"), list) and len(request.prompts) > 1:
            stream.opening = OPENING_OF_SEVERAL
        return stream

    async def _end(
        self, request: LlamaRequest, reply: Reply, stream: StreamOutput, served: ServedRequest
    ) -> bool:
        kind = reply.fault.kind if reply.fault else None
        if request.endpoint in _SENTINEL_ENDPOINTS and kind is not FaultKind.NO_DONE:
            await stream.send(DONE)
        if kind is FaultKind.SLOW_CLOSE and reply.fault is not None:
            await asyncio.sleep(reply.fault.seconds or 0.0)
        served.scripted = kind is FaultKind.NO_DONE
        stream.end()
        return False

    def _send_buffered(
        self,
        request: LlamaRequest,
        reply: Reply,
        formatters: list[AnswerFormatter],
        writer: ResponseWriter,
        served: ServedRequest,
    ) -> bool:
        if writer.gone:
            raise Abandoned
        content = answer(200, combined_answer(request, formatters))
        if reply.fault is not None and reply.fault.kind is FaultKind.WRONG_LENGTH:
            _, _, body = content.partition(b"\r\n\r\n")
            wrong = len(body) + (reply.fault.bytes or 10)
            served.scripted = True
            writer.write(answer(200, body, length=wrong))
            writer.finish()
            return False
        return _write(writer, content)

    def _apply_fault(
        self,
        fault: ScriptedFault,
        writer: ResponseWriter,
        formatters: list[AnswerFormatter],
        *,
        streaming: bool,
    ) -> None:
        if fault.kind is FaultKind.CRASH:
            self.crashes += 1
            for running in self.served_requests:
                running.scripted = running.scripted or running.outcome == "running"
                self._note_scripted(running)
            self.on_crash(fault.seconds or 0.0)
        elif fault.kind is FaultKind.RST:
            writer.reset()
        else:
            if not streaming:
                body = answer(200, formatters[0].body())
                writer.write(body[: -max(1, len(body) // 4)])
            writer.finish()

    def _generations(
        self,
        request: LlamaRequest,
        reply: Reply,
        generator: random.Random,
        output: StreamOutput | BufferedOutput,
    ) -> list[ChoiceGeneration]:
        formatter_for = FORMATTERS[request.endpoint]
        id_slot = request.body.get("id_slot")
        wanted = id_slot if isinstance(id_slot, int) and id_slot >= 0 else None
        shared_id = seeded_id(generator)
        endless = reply.fault is not None and reply.fault.kind is FaultKind.NO_DONE
        endless = endless and request.endpoint not in _SENTINEL_ENDPOINTS
        found = []
        for index, prompt in enumerate(request.prompts):
            speech, finish = tokens_of(request, reply, generator)
            context = AnswerContext(
                model=self.scene.machine.model,
                prompt=prompt,
                prompt_tokens=prompt_length(prompt, reply),
                cached_tokens=min(reply.cached_tokens, prompt_length(prompt, reply) - 1),
                limit=-1 if request.limit is None else request.limit,
                body=request.body,
                random=generator,
                id=shared_id,
                token_ms=1000 / reply.pace.tokens_per_s if reply.pace.tokens_per_s else 5.0,
                prompt_ms=1000 * reply.pace.prefill(prompt_length(prompt, reply)) or 1.0,
            )
            timed = TimedTokens(speech, finish, reply.pace, reply.fault, generator)
            source = (
                timed if self.choose_token_source is None else self.choose_token_source(request, reply, timed)
            )
            formatter = formatter_for(GeneratedAnswer(context, index))
            found.append(
                ChoiceGeneration(self._resources, formatter, source, output, wanted, endless=endless)
            )
        self.on_change()
        return found

    async def _compute(
        self, request: LlamaRequest, reply: Reply, writer: ResponseWriter, served: ServedRequest
    ) -> bool:
        """Answer with embeddings or ranks. Each prompt occupies a slot for as long as reading it takes."""
        output = BufferedOutput(writer)
        client_checks, loop = self._resources.client_checks, asyncio.get_running_loop()

        async def one(prompt: str) -> None:
            claim = self.slots.take()
            try:
                await client_checks.wait(claim.granted, output.check_client)
                takes = reply.pace.prefill(prompt_length(prompt, reply))
                await client_checks.until(loop.time() + takes, output.check_client)
            finally:
                self.slots.release(claim)

        await asyncio.gather(*map(one, request.prompts))
        client_checks.note_result()
        if writer.gone:
            raise Abandoned
        served.status, served.outcome = 200, "complete"
        return _write(writer, answer(200, VECTOR_ANSWERS[request.endpoint](request, self.scene.machine)))

    def _generator(self, message: Message) -> random.Random:
        """Return a generator seeded by the script, the request body, and the number of times it has come."""
        digest = hashlib.blake2b(message.body, digest_size=16).digest()
        self._seen[digest] += 1
        return random.Random(b"%d %d %b" % (self.scene.machine.seed, self._seen[digest], digest))


_PROPS_ARE_FIXED: Final = "This server does not support changing global properties. Start it with `--props`"


def _write(writer: ResponseWriter, content: bytes) -> bool:
    writer.write(content)
    return True
