"""From a question and a reply of the script to the tokens that are said."""

from __future__ import annotations

import random

from slotgate.gateway.testing.fake.model.tokenizer import count
from slotgate.gateway.testing.fake.protocols.request import Asked
from slotgate.gateway.testing.fake.script.answer_content import Speech, Token, invented, pieces_of
from slotgate.gateway.testing.fake.script.scene import Reply

__all__ = ["prompt_length", "tokens_of"]


def tokens_of(question: Asked, reply: Reply, generator: random.Random) -> tuple[tuple[Token, ...], str]:
    """The tokens, cut where the request's limit is, and why they end.

    Words that are made up go on until the limit: that is what a limit is for.
    """
    limit = question.limit
    made_up = reply.text is None and not reply.calls
    if made_up:
        text = invented(reply.tokens if limit is None else limit, generator)
    else:
        text = pieces_of(reply.text or "")
    speech = Speech(text, pieces_of(reply.reasoning), reply.calls, reply.finish)
    tokens = tuple(speech.tokens())
    if limit is not None and (made_up or len(tokens) > limit):
        return tokens[:limit], reply.finish or "length"
    return tokens, speech.finish_reason


def prompt_length(prompt: str, reply: Reply) -> int:
    """In tokens; at least one."""
    return max(1, count(prompt) if reply.prompt_tokens is None else reply.prompt_tokens)
