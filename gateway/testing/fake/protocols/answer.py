"""An answer during its generation: its tokens so far, and the figures that llama-server adds.

Durations follow from the script and not from a clock, so that equal requests get equal bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slotgate.gateway.testing.fake.model.tokenizer import tokenize
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind, seeded_id

__all__ = ["CREATED", "FINGERPRINT", "AnswerContext", "GeneratedAnswer", "probabilities"]

CREATED = 1795967593
FINGERPRINT = "b1-7e4c0a9"
_TOKEN_MS = 5.0


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """The facts that all choices of one request share."""

    model: str
    prompt: str
    prompt_tokens: int
    cached_tokens: int
    limit: int
    """The largest number of tokens to generate. -1 means no limit."""
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
class GeneratedAnswer:
    """The tokens of one choice so far."""

    context: AnswerContext
    index: int = 0
    slot: int = 0
    tokens: list[Token] = field(default_factory=list)
    finish: str = "stop"

    def append(self, token: Token) -> None:
        self.tokens.append(token)

    def all(self, kind: TokenKind) -> str:
        return "".join(token.text for token in self.tokens if token.kind is kind)

    @property
    def text(self) -> str:
        return self.all(TokenKind.TEXT)

    @property
    def reasoning(self) -> str:
        return self.all(TokenKind.REASONING)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments of the tool calls so far."""
        found: list[tuple[str, str]] = []
        for token in self.tokens:
            if token.kind is TokenKind.CALL:
                found.append((token.text, ""))
            elif token.kind is TokenKind.ARGUMENTS:
                name, arguments = found[-1]
                found[-1] = (name, arguments + token.text)
        return found

    @property
    def predicted(self) -> int:
        return len(self.tokens)

    def usage(self) -> Json:
        context = self.context
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": context.prompt_tokens,
            "total_tokens": context.prompt_tokens + self.predicted,
            "prompt_tokens_details": {"cached_tokens": context.cached_tokens},
        }

    def timings(self) -> Json:
        context, predicted = self.context, self.predicted
        read = max(1, context.prompt_tokens - context.cached_tokens)
        return {
            "cache_n": context.cached_tokens,
            "prompt_n": context.prompt_tokens - context.cached_tokens,
            "prompt_ms": context.prompt_ms,
            "prompt_per_token_ms": context.prompt_ms / read,
            "prompt_per_second": 1000 * read / context.prompt_ms if context.prompt_ms else 0.0,
            "predicted_n": predicted,
            "predicted_ms": context.token_ms * predicted,
            "predicted_per_token_ms": context.token_ms,
            "predicted_per_second": 1000 / context.token_ms if context.token_ms else 0.0,
        }


def probabilities(token: Token, others: int, generator: random.Random) -> Json:
    """Return an entry of `logprobs.content`: the token, and `others` tokens as its alternatives."""

    def entry(text: str, logprob: float) -> Json:
        number = (tokenize(text) or [0])[0]
        return {"id": number, "token": text, "bytes": list(text.encode()), "logprob": logprob}

    said = entry(token.text, -round(generator.random(), 6))
    top = [entry(token.text if rank == 0 else f"{token.text}{rank}", -0.5 - rank) for rank in range(others)]
    return {**said, "top_logprobs": top}
