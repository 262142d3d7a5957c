"""Parsing the JSON that backends write, which is not always valid.

llama-server cuts tokens in the middle of a UTF-8 character, and backends write half surrogate pairs, NaN and
raw control bytes. `parse_lenient` reads such data as far as it makes sense and puts U+FFFD for the rest.
"""

from __future__ import annotations

import json
import re

import orjson

from slotgate.gateway.api.chunks import Chunk

__all__ = ["parse_lenient", "parse_object", "parse_value"]

_surrogates = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Matches escaped surrogates. Group 1 matches if the text is to stay: an escaped backslash or a whole
pair."""


def parse_value(payload: bytes) -> object:
    """Return the JSON value, or None if the payload is not JSON."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None


def parse_object(payload: bytes) -> Chunk | None:
    """Return the JSON object, or None if the payload is anything else."""
    value = parse_value(payload)
    return value if isinstance(value, dict) else None


def parse_lenient(payload: bytes) -> Chunk | None:
    """Return the JSON object of a payload that need not be strict JSON, or None if it cannot be read."""
    text = _surrogates.sub(lambda found: found[1] or "\\ufffd", payload.decode(errors="replace"))
    try:
        value = json.loads(text, strict=False, parse_int=orjson.loads)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
