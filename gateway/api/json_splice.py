"""Changing members of a JSON object without touching the rest of its bytes.

A request passes to the backend as the client wrote it: numbers keep their digits, and unknown members keep
their form. Only the members that the gateway has to set are replaced, and only at the top level. Regular
expressions skip what lies between the borders of members, in steps of bounded length (`json_scan.py`): short
strings and whatever is no bracket at once, and long strings piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson

from slotgate.gateway.api.json_scan import QUOTE, string_end

__all__ = ["Member", "members", "splice"]

_SHORT_STRING = rb'"[^"\\]{0,256}+(?:\\.[^"\\]{0,64}+){0,16}+"'
_between_members = re.compile(rb'[^"{}\[\],]{0,65536}+')
_inside_members = re.compile(rb'(?:[^"{}\[\]]{1,1024}+|%b){0,1024}+' % _SHORT_STRING, re.DOTALL)


_MAX_NAME_BYTES = 4096
"""A longer name is none that the gateway knows. It is not decoded, and stays."""


class Member(NamedTuple):
    """A member of the object: `document[start:end]` is `"name": value`."""

    name: str
    """Empty if it is longer than any that the gateway knows."""
    start: int
    end: int


def members(document: bytes) -> Iterator[Member]:
    """Yield the top-level members of a document that is known to be a valid JSON object."""
    depth, at = 1, document.index(b"{") + 1
    name, start = "", -1
    while depth:
        skipped = (_between_members if depth == 1 else _inside_members).match(document, at)
        if skipped is not None and skipped.end() > at:
            at = skipped.end()
            continue
        mark = document[at]
        if mark == QUOTE:
            end = string_end(document, at)
            if depth == 1 and start < 0:
                name = orjson.loads(document[at:end]) if end - at <= _MAX_NAME_BYTES else ""
                start = at
            at = end
            continue
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth == 0 and start >= 0:
                yield Member(name, start, at)
        elif depth == 1:
            yield Member(name, start, at)
            start = -1
        at += 1


def splice(document: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return the document with members set to the given JSON values, or left out where the value is None."""
    if not changes:
        return document
    kept = [document[start:end].rstrip() for name, start, end in members(document) if name not in changes]
    added = [orjson.dumps(name) + b":" + value for name, value in changes.items() if value is not None]
    return b"{" + b",".join([*added, *kept]) + b"}"
