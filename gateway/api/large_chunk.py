"""A chunk that is too large to hold: rewritten while it passes, and condensed for the gateway to read.

The bytes pass as they come, with the members that state an identity replaced. Beside that, a condensed copy
is made: long texts, the rest of long arrays and deeply nested containers are left out. It tells the gateway
its token counts, and whether it ends the answer. In a part that is left out only brackets are counted, so
memory is bounded however deep it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.json_repair import parse_object

__all__ = ["LargeChunk"]

MAX_DEPTH = 4
"""Containers nested more deeply are empty in the condensed copy."""
MAX_TEXT_BYTES = 256
"""A longer string is `...` in the condensed copy."""
MAX_ELEMENTS = 64
"""The number of elements of an array, or members of an object, that the condensed copy keeps."""
MAX_CONDENSED_BYTES = 256 * 1024
_NESTED = ("response", "message")
"""Members whose object states an identity, too."""
_in_string = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_between_brackets = re.compile(
    rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[^"{}\[\]]*+\]|\{[^"{}\[\]]*+\})*+', re.DOTALL
)
"""Everything up to a bracket, or to a string that does not end here. Innermost containers are passed over."""
_structural = re.compile(rb'["{}\[\],:]')
_CLOSERS = {ord("{"): ord("}"), ord("["): ord("]")}


class LargeChunk:
    """`members` are the members to replace, with their JSON values."""

    def __init__(self, members: Mapping[bytes, bytes]) -> None:
        self._members = members
        self._passing = bytearray()
        self._condensed = bytearray()
        self._cut_at = 0
        """The depth of the container whose rest the condensed copy leaves out; 0: none."""
        self._is_left_out = False
        """True in the rest of a container that the condensed copy leaves out and that states no identity."""
        self._depth_left_out = 0
        """The number of containers that are open in it."""
        self._containers: list[int] = []
        """The opening brackets around the position."""
        self._elements = [0]
        """Elements that have ended, of each of these containers (and of the text around them)."""
        self._keys: list[bytes] = [b""]
        """The member that each of them is in."""
        self._expects_key = False
        self._string: bytearray | None = None
        """The string at the position, as far as it is kept; None outside strings."""
        self._escape = b""
        """A backslash at the end of a piece."""
        self._replaced_at = 0
        """The depth of the object whose member is being replaced; 0: none."""

    def __repr__(self) -> str:
        return f"<LargeChunk at depth {len(self._containers)}, {len(self._condensed)} bytes condensed>"

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes that pass for a piece."""
        data, self._escape = self._escape + piece, b""
        at = 0
        while at < len(data):
            if self._string is not None:
                at = self._text(data, at)
            else:
                at = self._left_out(data, at) if self._is_left_out else self._between(data, at)
        passing, self._passing = bytes(self._passing), bytearray()
        return passing

    def finish(self) -> Chunk | None:
        """Return the condensed chunk, or None if it was not one whole JSON object."""
        if self._containers or len(self._condensed) > MAX_CONDENSED_BYTES:
            return None
        return parse_object(bytes(self._condensed))

    # -- strings

    def _text(self, data: bytes, at: int) -> int:
        """Read on in a string. Return the position behind what was read."""
        match = _in_string.match(data, at)
        end = match.end() if match else at
        string = self._string
        assert string is not None
        string += (
            data[at : min(end, at + MAX_TEXT_BYTES + 1 - len(string))]
            if len(string) <= MAX_TEXT_BYTES
            else b""
        )
        self._pass(data, at, end)
        if end == len(data):
            return end
        if data[end] != ord('"'):
            self._escape = data[end:]
            return len(data)
        self._pass(data, end, end + 1)
        self._string = None
        text = bytes(string) if len(string) <= MAX_TEXT_BYTES else b"..."
        if self._expects_key:
            self._keys[-1] = text
        self._keep(b'"%b"' % text)
        return end + 1

    # -- everything else

    def _between(self, data: bytes, at: int) -> int:
        """Read up to the next structural character. Return the position behind it."""
        match = _structural.search(data, at)
        end = match.start() if match else len(data)
        if end > at:
            self._pass(data, at, end)
            self._keep(data[at:end])
        if match is None:
            return end
        mark = data[end]
        if mark in _CLOSERS:
            self._open(mark)
        elif mark in b"}]":
            self._close(mark)
        elif mark == ord(","):
            self._next()
        elif mark == ord(":"):
            self._keep(b":")
            self._pass(data, end, end + 1)
            self._value()
        else:
            self._string = bytearray()
            self._pass(data, end, end + 1)
        return end + 1

    def _left_out(self, data: bytes, at: int) -> int:
        """Read on in a container that is left out, and count brackets. Return the position behind."""
        start = at
        while True:
            match = _between_brackets.match(data, at)
            at = match.end() if match else at
            if at == len(data):
                break
            mark = data[at]
            at += 1
            if mark == ord('"'):  # the string does not end in this piece
                self._string = bytearray()
                break
            if mark in _CLOSERS:
                self._depth_left_out += 1
            elif self._depth_left_out:
                self._depth_left_out -= 1
            else:
                self._pass(data, start, at - 1)
                self._close(mark)
                return at
        self._pass(data, start, at)
        return at

    def _leave_out(self) -> None:
        """Leave the rest of the innermost container out of the condensed copy."""
        depth = self._cut_at = len(self._containers)
        self._is_left_out = depth > 1 and not self._may_state_identity(depth)

    def _may_state_identity(self, depth: int) -> bool:
        return depth == 1 or (depth == 2 and self._keys[1].decode(errors="replace") in _NESTED)

    def _open(self, mark: int) -> None:
        if not self._replaced_at:
            self._passing.append(mark)
        self._keep(bytes((mark,)))
        self._containers.append(mark)
        self._elements.append(0)
        self._keys.append(b"")
        self._expects_key = mark == ord("{")
        if len(self._containers) > MAX_DEPTH and not self._cut_at:
            self._leave_out()

    def _close(self, mark: int) -> None:
        depth = len(self._containers)
        if self._replaced_at == depth:
            self._replaced_at = 0
        if not self._replaced_at:
            self._passing.append(mark)
        if self._cut_at == depth:
            self._cut_at = 0
            self._is_left_out = False
        self._keep(bytes((mark,)))
        if self._containers:
            self._containers.pop()
            self._elements.pop()
            self._keys.pop()
        self._expects_key = False

    def _next(self) -> None:
        depth = len(self._containers)
        if self._replaced_at == depth:
            self._replaced_at = 0
        if not self._replaced_at:
            self._passing += b","
        self._elements[-1] += 1
        if self._elements[-1] >= MAX_ELEMENTS and not self._cut_at:
            self._leave_out()
        self._keep(b",")
        self._expects_key = bool(self._containers) and self._containers[-1] == ord("{")

    def _value(self) -> None:
        """The value of a member begins: replace it if it states an identity."""
        self._expects_key = False
        depth = len(self._containers)
        value = self._members.get(self._keys[-1]) if self._may_state_identity(depth) else None
        if value is not None and not self._replaced_at:
            self._passing += value
            self._replaced_at = depth

    def _pass(self, data: bytes, start: int, end: int) -> None:
        if not self._replaced_at:
            self._passing += data[start:end]

    def _keep(self, text: bytes) -> None:
        if not self._cut_at and len(self._condensed) <= MAX_CONDENSED_BYTES:
            self._condensed += text
