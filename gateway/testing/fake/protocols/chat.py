"""How `/v1/chat/completions` is told, with usage and timings where llama-server puts them."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import FINGERPRINT, Told, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Kind, Token

__all__ = ["ChatTeller"]


class ChatTeller:
    def __init__(self, told: Told) -> None:
        self.told = told
        body = told.voice.body
        self._opened = False
        self._calls = 0
        self._called = ""
        """The name of a call whose first arguments have not come yet."""
        self._timed = bool(body.get("timings_per_token"))
        self._logprobs = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def say(self, token: Token) -> bytes:
        self.told.say(token)
        before = self._opening()
        if token.kind is not Kind.ARGUMENTS:
            before += self._call_without_arguments()
        if token.kind is Kind.CALL:
            self._calls += 1
            self._called = token.text
            return before
        logprobs = {} if self._logprobs is None else {"logprobs": {"content": [self._probabilities(token)]}}
        timings = {"timings": self.told.timings()} if self._timed else {}
        return before + self._chunk(self._delta(token), timings, choice=logprobs)

    def progress(self, processed: int) -> bytes:
        """Prompt processing as `return_progress` asks for it; every such chunk has the role again."""
        voice = self.told.voice
        figures = {
            "total": voice.prompt_tokens,
            "cache": voice.cached_tokens,
            "processed": processed,
            "time_ms": 0,
        }
        more = {"timings": self.told.timings()} if self._timed else {}
        return self._chunk({"role": "assistant", "content": None}, {**more, "prompt_progress": figures})

    def end(self) -> list[bytes]:
        """Timings stand in the finish chunk, or with `include_usage` in the usage chunk behind it."""
        told, times = self.told, {"timings": self.told.timings()}
        before = self._opening() + self._call_without_arguments()
        if not self._usage:
            return [before + self._chunk({}, times, finish=told.finish)]
        usage = data({"choices": [], **self._tail(), "usage": told.usage(), **times})
        return [before + self._chunk({}, finish=told.finish) + usage]

    def whole(self) -> Json:
        told, voice = self.told, self.told.voice
        return {
            "choices": [self._choice()],
            "created": voice.created,
            "model": voice.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion",
            "usage": told.usage(),
            "id": f"chatcmpl-{voice.id}",
            "timings": told.timings(),
        }

    def _choice(self) -> Json:
        told = self.told
        message: Json = {"role": "assistant", "content": told.text}
        if told.reasoning:
            message["reasoning_content"] = told.reasoning
        if told.calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                    "id": told.voice.new_id(),
                }
                for name, arguments in told.calls
            ]
        choice: Json = {"finish_reason": told.finish, "index": told.index, "message": message}
        if self._logprobs is not None:
            choice["logprobs"] = {"content": [self._probabilities(token) for token in told.tokens]}
        return choice

    def failed(self, error: Json) -> bytes:
        return data({"error": error})

    def _delta(self, token: Token) -> Json:
        if token.kind is Kind.TEXT:
            return {"content": token.text}
        if token.kind is Kind.REASONING:
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
        """A call is told when its first arguments are there: with them."""
        function = {"name": self._called, "arguments": arguments}
        self._called = ""
        call = {"id": self.told.voice.new_id(), "type": "function", "function": function}
        return {"tool_calls": [{"index": self._calls - 1, **call}]}

    def _call_without_arguments(self) -> bytes:
        return self._chunk(self._call("")) if self._called else b""

    def _chunk(
        self, delta: Json, more: Json | None = None, *, finish: str | None = None, choice: Json | None = None
    ) -> bytes:
        """`more` stands beside the choices, `choice` inside of the one."""
        head = {"finish_reason": finish, "index": self.told.index, "delta": delta, **(choice or {})}
        return data({"choices": [head], **self._tail(), **(more or {})})

    def _tail(self) -> Json:
        voice = self.told.voice
        return {
            "created": voice.created,
            "id": f"chatcmpl-{voice.id}",
            "model": voice.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion.chunk",
        }

    def _probabilities(self, token: Token) -> Json:
        return probabilities(token, self._logprobs or 0, self.told.voice.random)
