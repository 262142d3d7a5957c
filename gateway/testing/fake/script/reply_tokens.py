"""Turns a request and its reply into the tokens of the answer."""

from __future__ import annotations

import random

from slotgate.gateway.testing.fake.model.tokenizer import count
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest
from slotgate.gateway.testing.fake.script.answer_content import (
    AnswerContent,
    Token,
    made_up_words,
    split_words,
)
from slotgate.gateway.testing.fake.script.scene import Reply

__all__ = ["prompt_length", "tokens_of"]


def tokens_of(request: LlamaRequest, reply: Reply, generator: random.Random) -> tuple[tuple[Token, ...], str]:
    """Return the tokens, cut at the limit of the request, and the finish reason.

    Made-up words go on until the limit, so that a client gets as many tokens as it asked for.
    """
    limit = request.limit
    made_up = reply.text is None and not reply.calls
    if made_up:
        text = made_up_words(reply.tokens if limit is None else limit, generator)
    else:
        text = split_words(reply.text or "")
    speech = AnswerContent(text, split_words(reply.reasoning), reply.calls, reply.finish)
    tokens = tuple(speech.tokens())
    if limit is not None and (made_up or len(tokens) > limit):
        return tokens[:limit], reply.finish or "length"
    return tokens, speech.finish_reason


def prompt_length(prompt: str, reply: Reply) -> int:
    """Return the length of the prompt in tokens, at least 1."""
    return max(1, count(prompt) if reply.prompt_tokens is None else reply.prompt_tokens)
