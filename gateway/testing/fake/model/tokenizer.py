"""A tokenizer that needs no model: pieces of at most three bytes, each with a number that gives it back.

Real vocabularies have three to four bytes a token, so counts of prompts come out as one would guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["count", "detokenized", "piece", "tokenized"]

_PIECE: Final = re.compile(rb"[ ]?[A-Za-z]{1,2}|[\s\S]{1,3}")
_MARK: Final = b"\x01"
_HIGHEST: Final = int.from_bytes(_MARK + b"\xff\xff\xff")


def tokenized(text: str) -> list[int]:
    """The marker in front keeps leading zero bytes; it is what makes the number reversible."""
    return [int.from_bytes(_MARK + found) for found in _PIECE.findall(text.encode("utf-8", "surrogatepass"))]


def piece(token: int) -> bytes:
    """The bytes of one token; none for a number that is no token."""
    if not 0 <= token <= _HIGHEST:
        return b""
    written = token.to_bytes(4).lstrip(b"\x00")
    return written[1:] if written.startswith(_MARK) else b""


def detokenized(tokens: Sequence[int]) -> str:
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


def count(text: str) -> int:
    return sum(1 for _ in _PIECE.finditer(text.encode("utf-8", "surrogatepass")))
