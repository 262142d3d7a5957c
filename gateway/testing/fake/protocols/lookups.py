"""Answers that need no slot: tokens, templates and counts. Pure functions."""

from __future__ import annotations

from slotgate.gateway.testing.fake.model.tokenizer import count, piece, tokenize
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.endpoints import LlamaEndpoint
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest

__all__ = ["lookup_answer"]


def lookup_answer(request: LlamaRequest) -> Json:
    prompt = request.prompts[0]
    if request.endpoint is LlamaEndpoint.COUNT:
        return {"input_tokens": count(prompt)}
    if request.endpoint is LlamaEndpoint.TEMPLATE:
        return {"prompt": prompt}
    if request.endpoint is LlamaEndpoint.DETOKENIZE:
        return {"content": prompt}
    tokens = tokenize(prompt)
    if not request.body.get("with_pieces"):
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _shown(piece(token))} for token in tokens]}


def _shown(written: bytes) -> object:
    """Return the bytes as text if they are UTF-8, else as a list of numbers."""
    try:
        return written.decode()
    except UnicodeDecodeError:
        return list(written)
