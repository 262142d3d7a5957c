"""How `/v1/audio/transcriptions` is told, by a build that hears."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import Told
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["TranscriptTeller"]


class TranscriptTeller:
    def __init__(self, told: Told) -> None:
        self.told = told

    def say(self, token: Token) -> bytes:
        self.told.say(token)
        return data({"type": "transcript.text.delta", "delta": token.text})

    def end(self) -> list[bytes]:
        return [data({"type": "transcript.text.done", **self.whole()})]

    def whole(self) -> Json:
        told = self.told
        usage = {
            "type": "tokens",
            "input_tokens": told.voice.prompt_tokens,
            "output_tokens": told.predicted,
            "total_tokens": told.voice.prompt_tokens + told.predicted,
        }
        return {"text": "".join(token.text for token in told.tokens), "usage": usage}

    def failed(self, error: Json) -> bytes:
        return data({"error": error})
