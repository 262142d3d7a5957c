"""Formats answers of `/completion`, `/completions` and `/infill`.

Streams have no `[DONE]`: the last event has `"stop": true`.
"""

from __future__ import annotations

from slotgate.gateway.testing.fake.model.sampling import request_settings
from slotgate.gateway.testing.fake.model.tokenizer import tokenize
from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["NativeFormatter"]


class NativeFormatter:
    """Formats one answer of llama-server's own protocol."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer
        self._probs = int(answer.context.body.get("n_probs") or 0)

    def add(self, token: Token) -> bytes:
        answer = self.answer
        answer.append(token)
        said = {
            "index": answer.index,
            "content": token.text,
            "tokens": tokenize(token.text)[:1],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": answer.predicted,
            "tokens_evaluated": answer.context.prompt_tokens,
        }
        return data(said | self._probabilities([token]))

    def finish(self) -> list[bytes]:
        return [data(self._last(""))]

    def body(self) -> Json:
        return self._last("".join(token.text for token in self.answer.tokens)) | self._probabilities(
            self.answer.tokens
        )

    def error_event(self, error: Json) -> bytes:
        return data({"error": error})

    def _last(self, content: str) -> Json:
        answer, context = self.answer, self.answer.context
        return {
            "index": answer.index,
            "content": content,
            "tokens": [],
            "id_slot": answer.slot,
            "stop": True,
            "model": context.model,
            "tokens_predicted": answer.predicted,
            "tokens_evaluated": context.prompt_tokens,
            "generation_settings": request_settings(context.body, context.limit, stream=context.stream),
            "prompt": context.prompt,
            "has_new_line": "\n" in answer.text,
            "truncated": False,
            "stop_type": "limit" if answer.finish == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": context.prompt_tokens + max(0, answer.predicted - 1),
            "timings": answer.timings(),
        }

    def _probabilities(self, tokens: list[Token]) -> Json:
        if not self._probs:
            return {}
        random = self.answer.context.random
        return {"completion_probabilities": [probabilities(token, self._probs, random) for token in tokens]}
