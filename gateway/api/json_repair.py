"""The data of one event as JSON: as it stands, or parse_lenient.

Backends write what strict JSON refuses: a token that ends in the middle of a character, half a surrogate
pair, NaN, raw control bytes. Such data is read as far as it can be understood, with U+FFFD for the rest.
"""

from __future__ import annotations

import json
import re

import orjson

from slotgate.gateway.api.chunks import Chunk

__all__ = ["document", "parse_lenient", "parsed"]

_surrogates = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Group 1 is what stays as it is: an escaped backslash, a whole pair."""


def document(payload: bytes) -> object:
    """The JSON value; None if it is none."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None


def parsed(payload: bytes) -> Chunk | None:
    """The JSON object; None if it is none."""
    value = document(payload)
    return value if isinstance(value, dict) else None


def parse_lenient(payload: bytes) -> Chunk | None:
    """The same, of data that need not be strict JSON."""
    text = _surrogates.sub(lambda found: found[1] or "\\ufffd", payload.decode(errors="replace"))
    try:
        value = json.loads(text, strict=False, parse_int=orjson.loads)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
