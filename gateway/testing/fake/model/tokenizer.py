"""A tokenizer without a vocabulary: it cuts text into pieces of at most three bytes.

Each token number encodes its own piece. Real vocabularies have three to four bytes a token, so the counts are
of a realistic size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["count", "detokenize", "piece", "tokenize"]

_PIECE: Final = re.compile(rb"[ ]?[A-Za-z]{1,2}|[\s\S]{1,3}")
_MARK: Final = b"\x01"
_HIGHEST: Final = int.from_bytes(_MARK + b"\xff\xff\xff")


def tokenize(text: str) -> list[int]:
    """Return the token numbers. A marker byte in front of each piece keeps leading zero bytes."""
    return [int.from_bytes(_MARK + found) for found in _PIECE.findall(text.encode("utf-8", "surrogatepass"))]


def piece(token: int) -> bytes:
    """Return the bytes of a token, or no bytes for a number that is not a token."""
    if not 0 <= token <= _HIGHEST:
        return b""
    written = token.to_bytes(4).lstrip(b"\x00")
    return written[1:] if written.startswith(_MARK) else b""


def detokenize(tokens: Sequence[int]) -> str:
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


def count(text: str) -> int:
    return sum(1 for _ in _PIECE.finditer(text.encode("utf-8", "surrogatepass")))
