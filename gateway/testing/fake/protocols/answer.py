"""One answer under way: who gives it, what has been said so far, and the figures that llama-server adds.

Figures of time follow from the script, not from a clock: the same request is answered with the same bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slotgate.gateway.testing.fake.model.tokenizer import tokenized
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.script.answer_content import Kind, Token, seeded_id

__all__ = ["CREATED", "FINGERPRINT", "Told", "Voice", "probabilities"]

CREATED = 1795967593
FINGERPRINT = "b1-7e4c0a9"
_TOKEN_MS = 5.0


@dataclass(frozen=True, slots=True)
class Voice:
    """What the answers of one request have in common."""

    model: str
    prompt: str
    prompt_tokens: int
    cached_tokens: int
    limit: int
    """The most tokens that the request wants; -1 is no limit."""
    body: Json
    random: random.Random
    id: str
    created: int = CREATED
    token_ms: float = _TOKEN_MS
    prompt_ms: float = 1.0

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    def new_id(self) -> str:
        return seeded_id(self.random)


@dataclass(slots=True)
class Told:
    """What one choice has said."""

    voice: Voice
    index: int = 0
    slot: int = 0
    tokens: list[Token] = field(default_factory=list)
    finish: str = "stop"

    def say(self, token: Token) -> None:
        self.tokens.append(token)

    def all(self, kind: Kind) -> str:
        return "".join(token.text for token in self.tokens if token.kind is kind)

    @property
    def text(self) -> str:
        return self.all(Kind.TEXT)

    @property
    def reasoning(self) -> str:
        return self.all(Kind.REASONING)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments of the tool calls so far."""
        found: list[tuple[str, str]] = []
        for token in self.tokens:
            if token.kind is Kind.CALL:
                found.append((token.text, ""))
            elif token.kind is Kind.ARGUMENTS:
                name, arguments = found[-1]
                found[-1] = (name, arguments + token.text)
        return found

    @property
    def predicted(self) -> int:
        return len(self.tokens)

    def usage(self) -> Json:
        voice = self.voice
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": voice.prompt_tokens,
            "total_tokens": voice.prompt_tokens + self.predicted,
            "prompt_tokens_details": {"cached_tokens": voice.cached_tokens},
        }

    def timings(self) -> Json:
        voice, predicted = self.voice, self.predicted
        read = max(1, voice.prompt_tokens - voice.cached_tokens)
        return {
            "cache_n": voice.cached_tokens,
            "prompt_n": voice.prompt_tokens - voice.cached_tokens,
            "prompt_ms": voice.prompt_ms,
            "prompt_per_token_ms": voice.prompt_ms / read,
            "prompt_per_second": 1000 * read / voice.prompt_ms if voice.prompt_ms else 0.0,
            "predicted_n": predicted,
            "predicted_ms": voice.token_ms * predicted,
            "predicted_per_token_ms": voice.token_ms,
            "predicted_per_second": 1000 / voice.token_ms if voice.token_ms else 0.0,
        }


def probabilities(token: Token, others: int, generator: random.Random) -> Json:
    """One entry of `logprobs.content`: the token that was said, and so many that were not."""

    def entry(text: str, logprob: float) -> Json:
        number = (tokenized(text) or [0])[0]
        return {"id": number, "token": text, "bytes": list(text.encode()), "logprob": logprob}

    said = entry(token.text, -round(generator.random(), 6))
    top = [entry(token.text if rank == 0 else f"{token.text}{rank}", -0.5 - rank) for rank in range(others)]
    return {**said, "top_logprobs": top}
