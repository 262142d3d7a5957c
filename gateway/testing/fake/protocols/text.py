"""How `/v1/completions` is told: usage and timings always stand in the last chunk of a choice."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data
from slotgate.gateway.testing.fake.protocols.answer import FINGERPRINT, Told, probabilities
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["TextTeller"]


class TextTeller:
    def __init__(self, told: Told) -> None:
        self.told = told
        asked = told.voice.body.get("logprobs")
        self._logprobs = int(asked) if asked is not None and asked is not False else None

    def say(self, token: Token) -> bytes:
        self.told.say(token)
        logprobs = None if self._logprobs is None else {"content": [self._probabilities(token)]}
        return data(self._body(token.text, None, logprobs, {}, {}))

    def end(self) -> list[bytes]:
        return [data(self._last("", None))]

    def whole(self) -> Json:
        return self._last(self._everything(), self._all_logprobs())

    def failed(self, error: Json) -> bytes:
        return data({"error": error})

    def _everything(self) -> str:
        return "".join(token.text for token in self.told.tokens)

    def _all_logprobs(self) -> Json | None:
        if self._logprobs is None:
            return None
        return {"content": [self._probabilities(token) for token in self.told.tokens]}

    def _last(self, text: str, logprobs: Json | None) -> Json:
        told = self.told
        return self._body(text, told.finish, logprobs, {"usage": told.usage()}, {"timings": told.timings()})

    def _body(self, text: str, finish: str | None, logprobs: Json | None, usage: Json, times: Json) -> Json:
        voice = self.told.voice
        choice = {"text": text, "index": self.told.index, "logprobs": logprobs, "finish_reason": finish}
        return {
            "choices": [choice],
            "created": voice.created,
            "model": voice.model,
            "system_fingerprint": FINGERPRINT,
            "object": "text_completion",
            **usage,
            "id": f"chatcmpl-{voice.id}",
            **times,
        }

    def _probabilities(self, token: Token) -> Json:
        return probabilities(token, self._logprobs or 0, self.told.voice.random)
