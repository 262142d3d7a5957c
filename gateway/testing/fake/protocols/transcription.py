"""Formats answers of `/v1/audio/transcriptions`, as builds with audio input give them."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["TranscriptFormatter"]


class TranscriptFormatter:
    """Formats one transcript."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer

    def add(self, token: Token) -> bytes:
        self.answer.append(token)
        return data({"type": "transcript.text.delta", "delta": token.text})

    def finish(self) -> list[bytes]:
        return [data({"type": "transcript.text.done", **self.body()})]

    def body(self) -> Json:
        answer = self.answer
        usage = {
            "type": "tokens",
            "input_tokens": answer.context.prompt_tokens,
            "output_tokens": answer.predicted,
            "total_tokens": answer.context.prompt_tokens + answer.predicted,
        }
        return {"text": "".join(token.text for token in answer.tokens), "usage": usage}

    def error_event(self, error: Json) -> bytes:
        return data({"error": error})
