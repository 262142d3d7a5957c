"""Embeddings and ranks without meaning. The same text and seed always give the same values."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Callable
from typing import Final

from slotgate.gateway.testing.fake.model.tokenizer import count
from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.endpoints import LlamaEndpoint
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest
from slotgate.gateway.testing.fake.script.scene import Machine

__all__ = ["VECTOR_ANSWERS"]


def _embeddings(request: LlamaRequest, machine: Machine) -> object:
    coded = request.body.get("encoding_format") == "base64"
    more = {"encoding_format": "base64"} if coded else {}
    entries = [
        {"embedding": _coded(vector) if coded else vector, "index": index, "object": "embedding", **more}
        for index, vector in enumerate(_vector(prompt, machine) for prompt in request.prompts)
    ]
    return {**_head(request, machine), "data": entries}


def _native_embeddings(request: LlamaRequest, machine: Machine) -> object:
    return [
        {"index": index, "embedding": [_vector(text, machine)]} for index, text in enumerate(request.prompts)
    ]


def _ranking(request: LlamaRequest, machine: Machine) -> object:
    """Return ranks, best first. A request with `texts` gets the form of text-embeddings-inference."""
    body = request.body
    scores = [
        (index, _generator(prompt, machine).uniform(-1, 1)) for index, prompt in enumerate(request.prompts)
    ]
    most = body.get("top_n")
    ranked = sorted(scores, key=lambda entry: -entry[1])[
        : most if isinstance(most, int) and most > 0 else None
    ]
    if "texts" not in body:
        results = [{"index": index, "relevance_score": score} for index, score in ranked]
        return {**_head(request, machine), "results": results}
    return [
        {
            "index": index,
            "score": score,
            **({"text": body["texts"][index]} if body.get("return_text") else {}),
        }
        for index, score in ranked
    ]


VECTOR_ANSWERS: Final[dict[LlamaEndpoint, Callable[[LlamaRequest, Machine], object]]] = {
    LlamaEndpoint.EMBEDDINGS: _embeddings,
    LlamaEndpoint.NATIVE_EMBEDDINGS: _native_embeddings,
    LlamaEndpoint.RERANK: _ranking,
}


def _head(request: LlamaRequest, machine: Machine) -> Json:
    read = sum(map(count, request.prompts))
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
