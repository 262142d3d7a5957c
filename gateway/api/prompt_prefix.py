"""Hashes of the beginnings of a prompt, by which a backend is found that probably holds them in its KV cache.

The beginning after each message has a hash that covers everything up to there. The next turn of a
conversation repeats all earlier messages, so the hashes of its shorter beginnings are the same as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

__all__ = ["PromptPrefix", "messages_prefix", "text_prefix"]

_MAX_BEGINNINGS = 64
"""Only the longest beginnings of a prompt are kept."""
_BLOCK_CHARACTERS = 2048
_MAX_PARTS = 1024
"""Later parts of a prompt are not hashed. A body has room for a million messages, and each takes time."""
_MAX_PART_BYTES = 64 * 1024
"""Only this much of each part is hashed. Two pictures differ in their first bytes or in their length."""


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    beginnings: tuple[tuple[bytes, int], ...] = ()
    """(hash, bytes up to there) of each beginning, the shortest first."""
    session: bytes = b""
    """The session key; empty: the client named no session."""


def messages_prefix(parsed: Mapping[str, Any], session: bytes = b"") -> PromptPrefix:
    """Hash a body with a list of messages.

    Chat templates render tools and instructions before the first message, so they count as the beginning.
    """
    head = [parsed.get(name) for name in ("tools", "system", "instructions")]
    listed = parsed.get("messages", parsed.get("input"))
    parts = listed if isinstance(listed, list) else [listed]
    return _prefix_of(_encode(head), map(_encode, parts), session)


def text_prefix(parsed: Mapping[str, Any], session: bytes = b"") -> PromptPrefix:
    """Hash a body with one text, in blocks of equal length."""
    text = parsed.get("prompt", parsed.get("input_prefix"))
    if not isinstance(text, str):
        return PromptPrefix(session=session)
    starts = range(0, len(text) - _BLOCK_CHARACTERS + 1, _BLOCK_CHARACTERS)
    blocks = (text[start : start + _BLOCK_CHARACTERS].encode(errors="replace") for start in starts)
    return _prefix_of(b"", blocks, session)


def _prefix_of(head: bytes, parts: Iterable[bytes], session: bytes) -> PromptPrefix:
    return PromptPrefix(tuple(_beginnings(head, islice(parts, _MAX_PARTS)))[-_MAX_BEGINNINGS:], session)


def _beginnings(head: bytes, parts: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    running = hashlib.blake2b(digest_size=8)
    size = 0
    for part in (head, *parts):
        size += len(part)
        running.update(b"%d:" % len(part) + part[:_MAX_PART_BYTES])
        yield running.digest(), size


def _encode(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""
