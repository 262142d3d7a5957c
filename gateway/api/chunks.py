"""The general path of a chat stream: pure functions that turn a parsed chunk into chunks for the client.

Every field of an upstream chunk is kept, in its order. Only `id`, `created` and `model` are replaced by the
gateway's own. A choice with both reasoning and content leaves as two chunks, reasoning first, because clients
expect one kind in a frame.

`plain_delta` recognises the chunk that makes up nearly all of a stream: one choice with one piece of text,
and without finish reason, log probabilities, usage and timings. `slotgate.gateway.streaming.frames` may write
such a chunk from a template instead, which must give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from slotgate.gateway.http.errors import UpstreamError

__all__ = [
    "KEPT_APART",
    "REASONING_KINDS",
    "TEXT_KINDS",
    "Chunk",
    "Identity",
    "data_frame",
    "encode",
    "has_output",
    "only_reasoning",
    "plain_delta",
    "stamp_and_split",
]

Chunk = dict[str, Any]

REASONING_KINDS = ("reasoning_content", "reasoning")
TEXT_KINDS = ("content", *REASONING_KINDS, "refusal")
"""Delta fields that hold generated text. llama-server, forks of it and OpenAI use different ones."""
_OUTPUT_KINDS = (*TEXT_KINDS, "tool_calls")
_OTHER_KINDS = tuple(kind for kind in _OUTPUT_KINDS if kind not in REASONING_KINDS)

KEPT_APART = ("usage", "timings", "prompt_progress", "error")
"""Top-level fields that make a chunk more than a piece of text."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The id, time and model that the gateway writes into all chunks of one answer."""

    id: str
    """Empty: the answer's own id and time stay."""
    created: int
    """Unix time in seconds."""
    model: str
    """The public name that the client asked for."""

    def stamp(self, chunk: Chunk) -> None:
        if self.id:
            chunk["id"] = self.id
            chunk["created"] = self.created
        chunk["model"] = self.model


def encode(document: object) -> bytes:
    """Return the JSON of a value from a backend.

    Raises `UpstreamError` if it cannot be written: orjson reads deeper nesting and bigger numbers than it
    writes.
    """
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        message = "the backend's answer is nested too deeply, or has numbers that are too big"
        raise UpstreamError("upstream_broken", message) from error


def data_frame(chunk: Chunk) -> bytes:
    """Return the chunk as a server-sent event without a name."""
    return b"data: " + encode(chunk) + b"\n\n"


def stamp_and_split(chunk: Chunk, identity: Identity) -> list[Chunk]:
    """Return the chunk under the gateway's identity, as two if a choice mixes reasoning and content."""
    identity.stamp(chunk)
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not any(_mixes_kinds(choice) for choice in choices):
        return [chunk]
    first = {key: value for key, value in chunk.items() if key not in KEPT_APART}
    first["choices"] = [_only_reasoning(choice) for choice in choices if _mixes_kinds(choice)]
    chunk["choices"] = [_without_reasoning(choice) if _mixes_kinds(choice) else choice for choice in choices]
    return [first, chunk]


def plain_delta(chunk: Chunk) -> tuple[str, str] | None:
    """Return (kind, text) if the chunk is one plain text delta of choice 0, else None."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    for name in KEPT_APART:
        if chunk.get(name) is not None:
            return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index") != 0 or not isinstance(delta, dict) or len(delta) != 1:
        return None
    for name, value in choice.items():
        if value is not None and name not in ("index", "delta"):
            return None
    [(kind, text)] = delta.items()
    return (kind, text) if kind in TEXT_KINDS and isinstance(text, str) and text else None


def has_output(chunk: Chunk) -> bool:
    """Return True if the chunk carries generated output: text of any kind, or a tool call."""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            for kind in _OUTPUT_KINDS:
                if delta.get(kind):
                    return True
    return False


def only_reasoning(chunk: Chunk) -> bool:
    """Return True if all output of the chunk is reasoning."""
    choices = chunk.get("choices")
    found = False
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            if any(delta.get(kind) for kind in _OTHER_KINDS):
                return False
            found = found or any(delta.get(kind) for kind in REASONING_KINDS)
    return found


def _mixes_kinds(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return (
        isinstance(delta, dict)
        and bool(delta.get("content"))
        and any(delta.get(kind) for kind in REASONING_KINDS)
    )


def _only_reasoning(choice: Chunk) -> Chunk:
    delta = {key: value for key, value in choice["delta"].items() if key in (*REASONING_KINDS, "role")}
    return {**dict.fromkeys(choice), "index": choice.get("index", 0), "delta": delta}


def _without_reasoning(choice: Chunk) -> Chunk:
    delta = {key: value for key, value in choice["delta"].items() if key not in (*REASONING_KINDS, "role")}
    return {**choice, "delta": delta}
