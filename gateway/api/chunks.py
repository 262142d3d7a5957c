"""The general path of a chat stream: what one parsed chunk becomes. Pure functions over dictionaries.

Every field of an upstream chunk is kept, in its order; `id`, `created` and `model` are replaced by the
gateway's own. A choice that carries reasoning and content at once leaves as two chunks, reasoning first,
because clients expect one kind a frame.

`plain_delta` recognises the chunk that makes up nearly all of a stream: one choice, one piece of text, and
nothing that has to be kept apart (finish reason, log probabilities, usage, timings). Those may take
the short way of `slotgate.gateway.streaming.frames`, which must write the same bytes.
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
    "dumped",
    "frame",
    "has_output",
    "plain_delta",
    "rewrite",
]

Chunk = dict[str, Any]

REASONING_KINDS = ("reasoning_content", "reasoning")
TEXT_KINDS = ("content", *REASONING_KINDS, "refusal")
"""Names of the delta fields that hold generated text, as llama-server, its kin and OpenAI write them."""
_OUTPUT_KINDS = (*TEXT_KINDS, "tool_calls")

KEPT_APART = ("usage", "timings", "prompt_progress", "error")
"""Fields beside the choices that make a chunk more than a piece of text."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of one answer says it belongs to."""

    id: str
    """Empty for answers that have neither id nor time."""
    created: int
    """Unix time in seconds."""
    model: str
    """The public name that the client asked for."""

    def stamp(self, chunk: Chunk) -> None:
        if self.id:
            chunk["id"] = self.id
            chunk["created"] = self.created
        chunk["model"] = self.model


def dumped(document: Chunk | list[Any]) -> bytes:
    """What a backend said, written again. Raises `UpstreamError` if it is nested too deeply for that."""
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        message = "the backend's answer is nested too deeply, or has numbers that are too big"
        raise UpstreamError("upstream_broken", message) from error


def frame(chunk: Chunk) -> bytes:
    return b"data: " + dumped(chunk) + b"\n\n"


def rewrite(chunk: Chunk, identity: Identity) -> list[Chunk]:
    """The chunk under the gateway's identity: one chunk, or two where kinds were mixed."""
    identity.stamp(chunk)
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not any(_mixes_kinds(choice) for choice in choices):
        return [chunk]
    first = {key: value for key, value in chunk.items() if key not in KEPT_APART}
    first["choices"] = [_only_reasoning(choice) for choice in choices if _mixes_kinds(choice)]
    chunk["choices"] = [_without_reasoning(choice) if _mixes_kinds(choice) else choice for choice in choices]
    return [first, chunk]


def plain_delta(chunk: Chunk) -> tuple[str, str] | None:
    """(kind, text) if the chunk is one plain text delta of choice 0, else None."""
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
    """Whether the chunk carries generated output: text of any kind, or a tool call."""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            for kind in _OUTPUT_KINDS:
                if delta.get(kind):
                    return True
    return False


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
