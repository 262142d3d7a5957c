"""Hashes of a prompt's beginnings. They tell which backend probably holds the prompt in its KV cache.

Each beginning (after the first message, after the second, ...) has a hash that covers everything up to there.
The next turn of a conversation repeats the last one and adds to it, so its shorter beginnings are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

__all__ = ["PromptPrefix", "messages_prefix", "text_prefix"]

_BEGINNINGS = 64
"""Of one prompt, the longest ones."""
_BLOCK_CHARACTERS = 2048
_LOOKED_AT_PARTS = 1024
"""Of one prompt: a body has room for a million messages, and each of them holds up the loop."""
_LOOKED_AT_BYTES = 64 * 1024
"""Of one part of a prompt: a picture is told from another by its beginning and its length."""


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    beginnings: tuple[tuple[bytes, int], ...] = ()
    """(hash, bytes up to there), the shortest first."""
    session: bytes = b""


def messages_prefix(parsed: Mapping[str, Any], session: bytes = b"") -> PromptPrefix:
    """Of a request with a list of messages. What is rendered before them belongs to the first."""
    head = [parsed.get(name) for name in ("tools", "system", "instructions")]
    listed = parsed.get("messages", parsed.get("input"))
    parts = listed if isinstance(listed, list) else [listed]
    return _prefix_of(_dumped(head), map(_dumped, parts), session)


def text_prefix(parsed: Mapping[str, Any], session: bytes = b"") -> PromptPrefix:
    """Of a request with one text."""
    text = parsed.get("prompt", parsed.get("input_prefix"))
    if not isinstance(text, str):
        return PromptPrefix(session=session)
    starts = range(0, len(text) - _BLOCK_CHARACTERS + 1, _BLOCK_CHARACTERS)
    blocks = (text[start : start + _BLOCK_CHARACTERS].encode(errors="replace") for start in starts)
    return _prefix_of(b"", blocks, session)


def _prefix_of(head: bytes, parts: Iterable[bytes], session: bytes) -> PromptPrefix:
    return PromptPrefix(tuple(_beginnings(head, islice(parts, _LOOKED_AT_PARTS)))[-_BEGINNINGS:], session)


def _beginnings(head: bytes, parts: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    running = hashlib.blake2b(digest_size=8)
    size = 0
    for part in (head, *parts):
        size += len(part)
        running.update(b"%d:" % len(part) + part[:_LOOKED_AT_BYTES])
        yield running.digest(), size


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""
