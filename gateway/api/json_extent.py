"""Limits the containers and values of a JSON text, before it is parsed.

A parser needs the same time for `[]` as for a long string, and much more memory than the text has. So a text
of some megabytes that is all brackets would hold the event loop for seconds. Brackets and commas inside
strings count for nothing: prompts are full of them.
"""

from __future__ import annotations

import re

__all__ = ["MAX_CONTAINERS", "MAX_VALUES", "is_within_bounds", "may_be_beyond_bounds"]

MAX_CONTAINERS = 100_000
"""Objects and arrays. So many are parsed in less than 50 ms."""
MAX_VALUES = 1_000_000
"""Values beyond the first of each container. A prompt may be given as an array of tokens."""
_strings = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def may_be_beyond_bounds(text: bytes) -> bool:
    """Return True if the text has to be looked at by `is_within_bounds`. Takes some milliseconds at most."""
    return text.count(b"[") + text.count(b"{") > MAX_CONTAINERS or text.count(b",") > MAX_VALUES


def is_within_bounds(text: bytes) -> bool:
    """Return False if the text has too many containers or values.

    It takes a second at most, and must be called in a thread.
    """
    containers, values, at = 0, 0, 0
    for string in _strings.finditer(text):
        start, end = string.span()
        if start > at:
            containers += text.count(b"[", at, start) + text.count(b"{", at, start)
            values += text.count(b",", at, start)
        if containers > MAX_CONTAINERS or values > MAX_VALUES:
            return False
        at = end
    containers += text.count(b"[", at) + text.count(b"{", at)
    return containers <= MAX_CONTAINERS and values + text.count(b",", at) <= MAX_VALUES
