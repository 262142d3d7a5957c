"""The short way for a plain text delta: what changes from one chunk to the next is the text alone.

A template is learnt from one chunk that took the general path: the bytes around the text as the upstream
writes them (`head`, `tail`), and the bytes around it as the gateway writes them (`prefix`, `suffix`). A
later payload with the same head and tail holds the same document with another text, because both cut
inside a JSON string: `head` ends with its opening quote and `tail` begins with its closing one. It leaves as

    prefix + orjson.dumps(text) without its quotes + suffix

which is what parsing, rewriting and dumping it would give, byte for byte. Printable ASCII without quote and
backslash is its own JSON form and is not even decoded.
"""

from __future__ import annotations

import orjson

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects import Dialect

__all__ = ["OWN_JSON_FORM", "Template", "canonical"]

_MARKER = "\u2063slotgate\u2063"
_MARKER_JSON = orjson.dumps(_MARKER)
OWN_JSON_FORM = bytes(byte if 32 <= byte < 127 and byte not in b'"\\' else 255 - byte for byte in range(256))
"""A table for `bytes.translate`: what it leaves as it is can stand in a JSON string as it is, and does."""


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
        "suffix",
    )

    def __init__(
        self, kind: str, head: bytes, tail: bytes, prefix: bytes, suffix: bytes, *, lead: bytes = b"data: "
    ) -> None:
        """`lead` is what stands before the data of an event."""
        self.kind = kind
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
        """From the data of an event called `name` and the plain chunk that it parsed to.

        None where the chunk is not plain, or its text cannot be located.
        """
        plain = dialect.plain(chunk)
        if plain is None:
            return None
        kind, text = plain
        theirs = _cut(payload, orjson.dumps(text))
        if theirs is None or dialect.plain(marked := _marked(*theirs)) != (kind, _MARKER):
            return None
        [chunk] = dialect.rewritten(marked)
        ours = _cut(dialect.frame(chunk), _MARKER_JSON)
        if ours is None:
            return None
        lead = b"event: %b\ndata: " % name if name else b"data: "
        return cls(kind, *theirs, *ours, lead=lead)

    def text_of_event(self, event: bytes) -> bytes | None:
        """The text of one event as it stands in the stream, from its first line to its blank line.

        In JSON form without the quotes; None if the event is not of this template.
        """
        if not event.startswith(self.event_head) or not event.endswith(self.event_tail):
            return None
        text = event[self._inside]
        if text and text.translate(OWN_JSON_FORM) == text:  # nothing is between a head and tail that overlap
            return text
        return self._text(event[self._lead_length : -2])

    def text_of(self, payload: bytes) -> bytes | None:
        """The same for the data of an event."""
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


def _cut(document: bytes, literal: bytes) -> tuple[bytes, bytes] | None:
    """What stands around the inside of a string literal; None if it is not there exactly once."""
    if document.count(literal) != 1:
        return None
    head, _, tail = document.partition(literal)
    return head + b'"', b'"' + tail


def _marked(head: bytes, tail: bytes) -> Chunk:
    """The document with the marker for its text; empty if what was cut out lay across two strings."""
    try:
        document: Chunk = orjson.loads(head + _MARKER_JSON[1:-1] + tail)
    except orjson.JSONDecodeError:
        return {}
    return document


def canonical(text: bytes) -> bytes | None:
    """The text as orjson writes it; None if it is not the inside of one JSON string."""
    try:
        decoded = orjson.loads(b'"' + text + b'"')
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(decoded)[1:-1]
