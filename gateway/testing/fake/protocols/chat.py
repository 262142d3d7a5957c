"""Formats answers of `/v1/chat/completions`, with usage and timings where llama-server puts them."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import FINGERPRINT, GeneratedAnswer, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind

__all__ = ["ChatFormatter"]


class ChatFormatter:
    """Formats one choice of a chat completion."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer
        body = answer.context.body
        self._opened = False
        self._calls = 0
        self._called = ""
        """The name of a call that waits for its first arguments, or an empty text."""
        self._timed = bool(body.get("timings_per_token"))
        self._logprobs = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def add(self, token: Token) -> bytes:
        self.answer.append(token)
        before = self._opening()
        if token.kind is not TokenKind.ARGUMENTS:
            before += self._call_without_arguments()
        if token.kind is TokenKind.CALL:
            self._calls += 1
            self._called = token.text
            return before
        logprobs = {} if self._logprobs is None else {"logprobs": {"content": [self._probabilities(token)]}}
        timings = {"timings": self.answer.timings()} if self._timed else {}
        return before + self._chunk(self._delta(token), timings, choice=logprobs)

    def progress(self, processed: int) -> bytes:
        """Return a progress chunk, which `return_progress` asks for. Each repeats the role."""
        context = self.answer.context
        figures = {
            "total": context.prompt_tokens,
            "cache": context.cached_tokens,
            "processed": processed,
            "time_ms": 0,
        }
        more = {"timings": self.answer.timings()} if self._timed else {}
        return self._chunk({"role": "assistant", "content": None}, {**more, "prompt_progress": figures})

    def finish(self) -> list[bytes]:
        """Timings are in the finish chunk, or with `include_usage` in the usage chunk behind it."""
        answer, times = self.answer, {"timings": self.answer.timings()}
        before = self._opening() + self._call_without_arguments()
        if not self._usage:
            return [before + self._chunk({}, times, finish=answer.finish)]
        usage = data({"choices": [], **self._tail(), "usage": answer.usage(), **times})
        return [before + self._chunk({}, finish=answer.finish) + usage]

    def body(self) -> Json:
        answer, context = self.answer, self.answer.context
        return {
            "choices": [self._choice()],
            "created": context.created,
            "model": context.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion",
            "usage": answer.usage(),
            "id": f"chatcmpl-{context.id}",
            "timings": answer.timings(),
        }

    def _choice(self) -> Json:
        answer = self.answer
        message: Json = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                    "id": answer.context.new_id(),
                }
                for name, arguments in answer.calls
            ]
        choice: Json = {"finish_reason": answer.finish, "index": answer.index, "message": message}
        if self._logprobs is not None:
            choice["logprobs"] = {"content": [self._probabilities(token) for token in answer.tokens]}
        return choice

    def error_event(self, error: Json) -> bytes:
        return data({"error": error})

    def _delta(self, token: Token) -> Json:
        if token.kind is TokenKind.TEXT:
            return {"content": token.text}
        if token.kind is TokenKind.REASONING:
            return {"reasoning_content": token.text}
        if self._called:
            return self._call(token.text)
        return {"tool_calls": [{"index": self._calls - 1, "function": {"arguments": token.text}}]}

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": None})

    def _call(self, arguments: str) -> Json:
        """Return the delta of a new call. It comes with the first arguments."""
        function = {"name": self._called, "arguments": arguments}
        self._called = ""
        call = {"id": self.answer.context.new_id(), "type": "function", "function": function}
        return {"tool_calls": [{"index": self._calls - 1, **call}]}

    def _call_without_arguments(self) -> bytes:
        return self._chunk(self._call("")) if self._called else b""

    def _chunk(
        self, delta: Json, more: Json | None = None, *, finish: str | None = None, choice: Json | None = None
    ) -> bytes:
        """Return a chunk. `more` are members beside the choices, `choice` are members of the choice."""
        head = {"finish_reason": finish, "index": self.answer.index, "delta": delta, **(choice or {})}
        return data({"choices": [head], **self._tail(), **(more or {})})

    def _tail(self) -> Json:
        context = self.answer.context
        return {
            "created": context.created,
            "id": f"chatcmpl-{context.id}",
            "model": context.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion.chunk",
        }

    def _probabilities(self, token: Token) -> Json:
        return probabilities(token, self._logprobs or 0, self.answer.context.random)
