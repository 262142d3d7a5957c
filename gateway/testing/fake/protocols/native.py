"""How `/completion`, `/completions` and `/infill` are told: without `[DONE]`; the last event says `stop`."""

from __future__ import annotations

from slotgate.gateway.testing.fake.model.sampling import settings_of
from slotgate.gateway.testing.fake.model.tokenizer import tokenized
from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import Told, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["NativeTeller"]


class NativeTeller:
    def __init__(self, told: Told) -> None:
        self.told = told
        self._probs = int(told.voice.body.get("n_probs") or 0)

    def say(self, token: Token) -> bytes:
        told = self.told
        told.say(token)
        said = {
            "index": told.index,
            "content": token.text,
            "tokens": tokenized(token.text)[:1],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": told.predicted,
            "tokens_evaluated": told.voice.prompt_tokens,
        }
        return data(said | self._probabilities([token]))

    def end(self) -> list[bytes]:
        return [data(self._last(""))]

    def whole(self) -> Json:
        return self._last("".join(token.text for token in self.told.tokens)) | self._probabilities(
            self.told.tokens
        )

    def failed(self, error: Json) -> bytes:
        return data({"error": error})

    def _last(self, content: str) -> Json:
        told, voice = self.told, self.told.voice
        return {
            "index": told.index,
            "content": content,
            "tokens": [],
            "id_slot": told.slot,
            "stop": True,
            "model": voice.model,
            "tokens_predicted": told.predicted,
            "tokens_evaluated": voice.prompt_tokens,
            "generation_settings": settings_of(voice.body, voice.limit, stream=voice.stream),
            "prompt": voice.prompt,
            "has_new_line": "\n" in told.text,
            "truncated": False,
            "stop_type": "limit" if told.finish == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": voice.prompt_tokens + max(0, told.predicted - 1),
            "timings": told.timings(),
        }

    def _probabilities(self, tokens: list[Token]) -> Json:
        if not self._probs:
            return {}
        random = self.told.voice.random
        return {"completion_probabilities": [probabilities(token, self._probs, random) for token in tokens]}
