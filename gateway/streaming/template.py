"""Templates of plain text deltas: from one chunk to the next, only the text changes.

A template is learnt from one chunk that took the general path. It holds the bytes around the text as the
upstream writes them (`head`, `tail`), and as the gateway writes them (`prefix`, `suffix`). A later payload
with the same head and tail is the same document with another text, because both borders lie inside a JSON
string: `head` ends with its opening quote and `tail` begins with its closing quote. The client gets

    prefix + orjson.dumps(text) without its quotes + suffix

which is, byte for byte, the result of parsing, rewriting and dumping the payload. Printable ASCII without
quote and backslash is its own JSON form and is not even decoded.
"""

from __future__ import annotations

import orjson

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects import Dialect

__all__ = ["OWN_JSON_FORM", "Template", "canonical"]

_MARKER = "\u2063slotgate\u2063"
_MARKER_JSON = orjson.dumps(_MARKER)
OWN_JSON_FORM = bytes(byte if 32 <= byte < 127 and byte not in b'"\\' else 255 - byte for byte in range(256))
"""A table for `bytes.translate`. Text that it leaves unchanged is its own form inside a JSON string."""


class Template:
    __slots__ = (
        "_head",
        "_inside",
        "_lead_length",
        "_overhead",
        "_tail",
        "event_head",
        "event_tail",
        "kind",
        "prefix",
        "reasoning",
        "suffix",
    )

    def __init__(
        self,
        kind: str,
        head: bytes,
        tail: bytes,
        prefix: bytes,
        suffix: bytes,
        *,
        lead: bytes = b"data: ",
        reasoning: bool = False,
    ) -> None:
        """`lead` is the beginning of an event, up to its data.

        `reasoning` is True if the text is reasoning.
        """
        self.kind = kind
        self.reasoning = reasoning
        self.prefix = prefix
        self.suffix = suffix
        self._head = head
        self._tail = tail
        self._overhead = len(head) + len(tail)
        self._lead_length = len(lead)
        self.event_head = lead + head
        self.event_tail = tail + b"\n\n"
        self._inside = slice(len(self.event_head), -len(self.event_tail))

    def __repr__(self) -> str:
        return f"<Template {self.kind} {self._overhead} bytes>"

    @classmethod
    def learn(cls, payload: bytes, chunk: Chunk, dialect: Dialect, name: bytes = b"") -> Template | None:
        """Learn from the data of an event called `name`, and from the chunk that it was parsed to.

        Returns None if the chunk is not a plain text delta, or if its text cannot be located in the data.
        """
        plain = dialect.plain(chunk)
        if plain is None:
            return None
        kind, text = plain
        reasoning = dialect.is_reasoning(chunk)
        theirs = _around(payload, orjson.dumps(text))
        if theirs is None or dialect.plain(marked := _marked(*theirs)) != (kind, _MARKER):
            return None
        [chunk] = dialect.rewritten(marked)
        ours = _around(dialect.frame(chunk), _MARKER_JSON)
        if ours is None:
            return None
        lead = b"event: %b\ndata: " % name if name else b"data: "
        return cls(kind, *theirs, *ours, lead=lead, reasoning=reasoning)

    def text_of_event(self, event: bytes) -> bytes | None:
        """Return the text of one whole event, from its first line to its blank line.

        The text is in JSON form without quotes. Returns None if the event does not match this template.
        """
        if not event.startswith(self.event_head) or not event.endswith(self.event_tail):
            return None
        text = event[self._inside]
        if text and text.translate(OWN_JSON_FORM) == text:  # empty if head and tail overlap
            return text
        return self._text(event[self._lead_length : -2])

    def text_of(self, payload: bytes) -> bytes | None:
        """Return the text of one event, given its data only."""
        if not payload.startswith(self._head) or not payload.endswith(self._tail):
            return None
        return self._text(payload)

    def _text(self, payload: bytes) -> bytes | None:
        if len(payload) <= self._overhead:
            return None
        text = payload[len(self._head) : -len(self._tail)]
        return text if text.translate(OWN_JSON_FORM) == text else canonical(text)

    def frame(self, text: bytes) -> bytes:
        return self.prefix + text + self.suffix


def _around(document: bytes, literal: bytes) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after the inside of a string literal.

    Returns None if the literal is not in the document exactly once.
    """
    if document.count(literal) != 1:
        return None
    head, _, tail = document.partition(literal)
    return head + b'"', b'"' + tail


def _marked(head: bytes, tail: bytes) -> Chunk:
    """Return the document with the marker as its text; empty if the text found lay across two strings."""
    try:
        document: Chunk = orjson.loads(head + _MARKER_JSON[1:-1] + tail)
    except orjson.JSONDecodeError:
        return {}
    return document


def canonical(text: bytes) -> bytes | None:
    """Return the text as orjson writes it, or None if it is not the inside of one JSON string."""
    try:
        decoded = orjson.loads(b'"' + text + b'"')
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(decoded)[1:-1]
