"""Merging the answers to the pieces of one request into the answer that llama-server would give to the whole.

Each piece of a split request (`api/split.py`) is answered alone, in any order. A part of an answer is an
embedding, a choice, a completion or a rank. Its `index` becomes what it is in the whole: pieces before it
times choices, and its place in its own piece. Counts in `usage` are added. Everything else is that of the
first piece.

Parts are kept as the JSON that will be sent, which needs less memory than parsed numbers. Nothing but the
last step takes longer the more pieces there are, and that only joins bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from slotgate.gateway.api.chunks import encode
from slotgate.gateway.http.errors import UpstreamError

__all__ = ["AnswerForm", "MergedAnswer"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer that consists of parts."""

    parts: str = ""
    """The member that lists the parts; empty: the answer is a list of them, or a single one."""
    score: str = ""
    """The member by which parts are sorted, the highest first; empty: they keep the order of the pieces."""
    most: int | None = None
    """The number of parts that the whole answer has at most; None: all. Only for sorted parts."""


class MergedAnswer:
    def __init__(self, form: AnswerForm, pieces: int, choices: int = 1) -> None:
        """`choices` is the number of parts that a piece is asked for."""
        self._form = form
        self._choices = choices
        self._fragments: list[bytes] = [b""] * pieces
        """The parts of each piece as JSON, with commas between them. Not used for sorted parts."""
        self._ranked: list[tuple[float, int, bytes]] = []
        """(negative score, index, JSON) of sorted parts."""
        self._first: Json = {}
        """The answer to the first piece, whose other members stand for the whole."""
        self._usage: Json | None = None
        self.size = 0
        """The bytes of the parts that it keeps."""

    def __repr__(self) -> str:
        return f"<MergedAnswer of {len(self._fragments)} pieces>"

    def add(self, position: int, answer: Json | list[Any]) -> None:
        """Take over the answer to a piece, which is changed. Raises `UpstreamError` for another form."""
        parts = self._parts_of(answer)
        for number, part in enumerate(parts):
            if "index" in part:
                part["index"] = position * self._choices + number
        if self._form.score:
            ranked = [(-_score(part, self._form.score), position, encode(part)) for part in parts]
            self._ranked += ranked
            self.size += sum(len(fragment) for _, _, fragment in ranked)
        else:
            fragment = self._fragments[position] = encode(parts)[1:-1]
            self.size += len(fragment)
        if isinstance(answer, dict) and self._form.parts:
            self._usage = _sum(self._usage, answer.get("usage"))
            if position == 0:
                self._first = {**answer, self._form.parts: None}

    def whole(self) -> bytes:
        """Return the whole answer, once every piece has been added."""
        fragments = self._fragments
        if self._form.score:
            self._ranked.sort()
            fragments = [fragment for _, _, fragment in self._ranked[: self._form.most]]
        listed = b"[" + b",".join(fragments) + b"]"
        if not self._form.parts:
            return listed
        usage = {} if self._usage is None else {"usage": self._usage}
        return encode({**self._first, **usage, self._form.parts: orjson.Fragment(listed)})

    def _parts_of(self, answer: Json | list[Any]) -> list[Json]:
        name = self._form.parts
        parts: object = answer
        if name:
            parts = answer.get(name) if isinstance(answer, dict) else None
        elif isinstance(answer, dict):
            parts = [answer]
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            what = f"a list {name!r}" if name else "a list of objects"
            raise UpstreamError("upstream_broken", f"the backend's answer is not {what}")
        return parts


def _score(part: Json, name: str) -> float:
    score = part.get(name)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise UpstreamError("upstream_broken", f"the backend's answer has no number {name!r}")
    return score


def _sum(before: Json | None, usage: object) -> Json | None:
    """Add the counts of a usage object, those of objects inside it too."""
    if not isinstance(usage, dict):
        return before
    if before is None:
        return usage
    total = dict(before)
    for name, value in usage.items():
        known = total.get(name)
        if isinstance(value, dict):
            total[name] = _sum(known if isinstance(known, dict) else None, value)
        elif isinstance(value, int) and isinstance(known, int):
            total[name] = known + value
        else:
            total.setdefault(name, value)
    return total
