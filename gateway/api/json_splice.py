"""Changing members of a JSON object without touching the rest of its bytes.

A request passes to the backend as the client wrote it: numbers keep their digits, and unknown members keep
their form. Only the members that the gateway has to set are replaced, and only at the top level. One regular
expression finds the borders of members. It matches a whole string, or an object or array without another one
inside, at once, so C code skips them. Its quantifiers are possessive (`*+`): with backtracking, the matcher
would keep a position in memory for every escape in a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson

__all__ = ["Member", "members", "splice"]

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[{\[](?:[^"{}\[\]]++|%b)*+[}\]]' % _STRING
_token = re.compile(rb"%b|%b|[{}\[\],]" % (_STRING, _FLAT), re.DOTALL)


class Member(NamedTuple):
    """A member of the object: `document[start:end]` is `"name": value`."""

    name: str
    start: int
    end: int


def members(document: bytes) -> Iterator[Member]:
    """Yield the top-level members of a document that is known to be a valid JSON object."""
    depth = 1
    name, start = "", -1
    for token in _token.finditer(document, document.index(b"{") + 1):
        first, is_one_byte = document[token.start()], token.end() - token.start() == 1
        if is_one_byte and first in b"{[":
            depth += 1
        elif is_one_byte and first in b"}]":
            depth -= 1
            if depth == 0 and start >= 0:
                yield Member(name, start, token.start())
        elif depth == 1:
            if first == ord(","):
                yield Member(name, start, token.start())
                start = -1
            elif first == ord('"') and start < 0:
                name, start = orjson.loads(token[0]), token.start()


def splice(document: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return the document with members set to the given JSON values, or left out where the value is None."""
    if not changes:
        return document
    kept = [document[start:end].rstrip() for name, start, end in members(document) if name not in changes]
    added = [orjson.dumps(name) + b":" + value for name, value in changes.items() if value is not None]
    return b"{" + b",".join([*added, *kept]) + b"}"
