"""Limits the containers and values of a JSON text, before it is parsed.

A parser needs the same time for `[]` as for a long string, and much more memory than the text has. So a text
of some megabytes that is all brackets would hold the event loop for seconds. Brackets and commas inside
strings count for nothing: prompts are full of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from slotgate.gateway.api.json_scan import string_end

__all__ = ["MAX_CONTAINERS", "MAX_NAMES", "MAX_VALUES", "is_within_bounds", "may_be_beyond_bounds"]

MAX_CONTAINERS = 100_000
"""Objects and arrays. So many are parsed in less than 50 ms."""
MAX_NAMES = 100_000
"""Names of members. A name takes as long as several values: each is looked up and kept."""
MAX_VALUES = 500_000
"""Values beyond the first of each container. A prompt may be given as an array of tokens."""


def may_be_beyond_bounds(text: bytes) -> Iterator[bool]:
    """Look at the text in steps of some milliseconds. Yield True if `is_within_bounds` has to look at it."""
    arrays = text.count(b"[")
    yield arrays > MAX_CONTAINERS
    yield arrays + text.count(b"{") > MAX_CONTAINERS
    yield text.count(b":") > MAX_NAMES
    yield text.count(b",") > MAX_VALUES


def is_within_bounds(text: bytes) -> bool:
    """Return False if the text has too many containers, names or values.

    It takes a second or two at most, and must be called in a thread.
    """
    containers, names, values, at = 0, 0, 0, 0
    while at < len(text):
        start = text.find(b'"', at)
        stop = start if start >= 0 else len(text)
        if stop > at:
            containers += text.count(b"[", at, stop) + text.count(b"{", at, stop)
            names += text.count(b":", at, stop)
            values += text.count(b",", at, stop)
        if containers > MAX_CONTAINERS or names > MAX_NAMES or values > MAX_VALUES:
            return False
        if start < 0:
            break
        at = string_end(text, start)
    return True
