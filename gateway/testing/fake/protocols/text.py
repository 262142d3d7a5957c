"""Formats answers of `/v1/completions`. The last chunk of a choice always has usage and timings."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import FINGERPRINT, GeneratedAnswer, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["TextFormatter"]


class TextFormatter:
    """Formats one choice of a text completion."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer
        asked = answer.context.body.get("logprobs")
        self._logprobs = int(asked) if asked is not None and asked is not False else None

    def add(self, token: Token) -> bytes:
        self.answer.append(token)
        logprobs = None if self._logprobs is None else {"content": [self._probabilities(token)]}
        return data(self._body(token.text, None, logprobs, {}, {}))

    def finish(self) -> list[bytes]:
        return [data(self._last("", None))]

    def body(self) -> Json:
        return self._last(self._everything(), self._all_logprobs())

    def error_event(self, error: Json) -> bytes:
        return data({"error": error})

    def _everything(self) -> str:
        return "".join(token.text for token in self.answer.tokens)

    def _all_logprobs(self) -> Json | None:
        if self._logprobs is None:
            return None
        return {"content": [self._probabilities(token) for token in self.answer.tokens]}

    def _last(self, text: str, logprobs: Json | None) -> Json:
        answer = self.answer
        return self._body(
            text, answer.finish, logprobs, {"usage": answer.usage()}, {"timings": answer.timings()}
        )

    def _body(self, text: str, finish: str | None, logprobs: Json | None, usage: Json, times: Json) -> Json:
        context = self.answer.context
        choice = {"text": text, "index": self.answer.index, "logprobs": logprobs, "finish_reason": finish}
        return {
            "choices": [choice],
            "created": context.created,
            "model": context.model,
            "system_fingerprint": FINGERPRINT,
            "object": "text_completion",
            **usage,
            "id": f"chatcmpl-{context.id}",
            **times,
        }

    def _probabilities(self, token: Token) -> Json:
        return probabilities(token, self._logprobs or 0, self.answer.context.random)
