"""Answers that need no slot: tokens, templates, counts. Pure functions."""

from __future__ import annotations

from slotgate.gateway.testing.fake.model.tokenizer import count, piece, tokenized
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.request import Asked, Door

__all__ = ["looked_up"]


def looked_up(question: Asked) -> Json:
    prompt = question.prompts[0]
    if question.door is Door.COUNT:
        return {"input_tokens": count(prompt)}
    if question.door is Door.TEMPLATE:
        return {"prompt": prompt}
    if question.door is Door.DETOKENIZE:
        return {"content": prompt}
    tokens = tokenized(prompt)
    if not question.body.get("with_pieces"):
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _shown(piece(token))} for token in tokens]}


def _shown(written: bytes) -> object:
    """Text where it is some, else its bytes."""
    try:
        return written.decode()
    except UnicodeDecodeError:
        return list(written)
