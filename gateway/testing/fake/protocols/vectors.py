"""Embeddings and ranks that mean nothing and are always the same: made from the text and the seed."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Callable
from typing import Final

from slotgate.gateway.testing.fake.model.tokenizer import count
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.request import Asked, Door
from slotgate.gateway.testing.fake.script.scene import Machine

__all__ = ["COMPUTED"]


def _embeddings(question: Asked, machine: Machine) -> object:
    coded = question.body.get("encoding_format") == "base64"
    more = {"encoding_format": "base64"} if coded else {}
    entries = [
        {"embedding": _coded(vector) if coded else vector, "index": index, "object": "embedding", **more}
        for index, vector in enumerate(_vector(prompt, machine) for prompt in question.prompts)
    ]
    return {**_head(question, machine), "data": entries}


def _native_embeddings(question: Asked, machine: Machine) -> object:
    return [
        {"index": index, "embedding": [_vector(text, machine)]} for index, text in enumerate(question.prompts)
    ]


def _ranking(question: Asked, machine: Machine) -> object:
    """Best first; with `texts` in the form of another server's API."""
    body = question.body
    scores = [
        (index, _generator(prompt, machine).uniform(-1, 1)) for index, prompt in enumerate(question.prompts)
    ]
    most = body.get("top_n")
    ranked = sorted(scores, key=lambda entry: -entry[1])[
        : most if isinstance(most, int) and most > 0 else None
    ]
    if "texts" not in body:
        results = [{"index": index, "relevance_score": score} for index, score in ranked]
        return {**_head(question, machine), "results": results}
    return [
        {
            "index": index,
            "score": score,
            **({"text": body["texts"][index]} if body.get("return_text") else {}),
        }
        for index, score in ranked
    ]


COMPUTED: Final[dict[Door, Callable[[Asked, Machine], object]]] = {
    Door.EMBEDDINGS: _embeddings,
    Door.NATIVE_EMBEDDINGS: _native_embeddings,
    Door.RERANK: _ranking,
}


def _head(question: Asked, machine: Machine) -> Json:
    read = sum(map(count, question.prompts))
    return {"model": machine.model, "object": "list", "usage": {"prompt_tokens": read, "total_tokens": read}}


def _vector(text: str, machine: Machine) -> list[float]:
    generator = _generator(text, machine)
    raw = [generator.gauss(0, 1) for _ in range(machine.dimensions)]
    length = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / length for value in raw]


def _generator(text: str, machine: Machine) -> random.Random:
    return random.Random(f"{machine.seed} {text}")


def _coded(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
