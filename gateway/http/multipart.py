"""Parse a multipart form while it arrives, and forward it without copying it.

The gateway needs only a few small fields of a transcription: the model, `stream` and the limit. It never
inspects, joins or copies the file. The form is kept in the pieces in which it arrived. To change a field, the
pieces around its value are sent with a new value between them.

Servers differ about an odd `Content-Disposition`. A field that the gateway overlooks would get past the
tenant's limits, so a part with one is refused. One with an empty file name is a field for some servers, and a
file for others.

llama-server makes a JSON object of the fields and copies it into a chat request. All values are text, except
`stream` (true if its text is `true`) and `max_tokens` (a number). A repeated field becomes a list.
llama-server accepts no text for a number, so other fields of a form (`id_slot`, `n`, `n_predict`,
`cache_prompt`) have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.request_body import Body

__all__ = ["Form", "boundary_of"]

MAX_FIELD_BYTES = 8192
"""Only so many bytes of a field's value are read. The whole value is forwarded."""
MAX_PARTS = 64
_SETTABLE = ("model", "max_tokens")
_disposition = re.compile(
    rb"""form-data[ \t]*;[ \t]*name=(?:"(?P<quoted>[^"\\;\r\n]*)"|(?P<word>[A-Z0-9_.\[\]-]+))"""
    rb"""(?P<file>[ \t]*;[ \t]*filename=(?:"(?:(?!;[ \t]*name)[^"\\]|\\.)+"|[^"\\;= \t]+)"""
    rb"""(?:[ \t]*;[ \t]*filename\*=[^"\\;= \t]+)?)?""",
    re.IGNORECASE,
).fullmatch
"""A `Content-Disposition` that every parser reads alike: the name once and first, then that of a file."""
_is_boundary = re.compile(rb"[ -~]{0,69}[!-~]").fullmatch


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary from the header. Raises `ClientError` if it does not announce a form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind.lower() != b"multipart/form-data" or not _is_boundary(boundary):
        message = "the body must be multipart/form-data, with a boundary"
        raise ClientError("invalid_request", message, param="content-type")
    return boundary


@dataclass(slots=True)
class _Field:
    """A part without a file name, with the place of its value in the body."""

    start: int = 0
    length: int = 0
    value: bytearray = field(default_factory=bytearray)
    """The first `MAX_FIELD_BYTES` of the value."""

    @property
    def text(self) -> str:
        return self.value.decode(errors="replace")


class Form:
    """A form of a request.

    Call `feed` with each piece, then `finish`; after that read `members` or `changed`.
    """

    def __init__(self, boundary: bytes) -> None:
        self.size = 0
        self._boundary = boundary
        self._pieces: list[bytes] = []
        self._feeding = b""
        self._begins_at: int | None = None
        """Position of the first delimiter. Only line breaks may precede it."""
        self._fields: dict[str, list[_Field]] = {}
        self._parts = 0
        self._header = b""
        self._value = b""
        self._name: str | None = None
        """The name of the current part, or None if it is not a field."""
        self._field: _Field | None = None
        self._disposed = False
        """True if the current part has said what it is."""
        self._ended = False
        self._parser: MultipartParser | None = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._part_data_begins,
                "on_part_data": self._part_data,
                "on_end": self._end,
            },
        )

    def __repr__(self) -> str:
        return f"<Form {self.size} bytes, {self._parts} parts>"

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body. Raises `ClientError` if the body is not a form."""
        self._feeding = piece
        if self._begins_at is None and (beginning := piece.lstrip(b"\r\n")):
            if not beginning.startswith(
                b"-"
            ):  # the parser would skip text to find a delimiter in the same piece
                raise _invalid("it does not begin with its boundary")
            self._begins_at = self.size + len(piece) - len(beginning)
        assert self._parser is not None
        try:
            self._parser.write(piece)
        except MultipartParseError as error:
            raise _invalid(str(error)) from error
        self._pieces.append(piece)
        self.size += len(piece)

    def close(self) -> None:
        """Let go of the parser, whose callbacks refer to this form. Nothing can be fed after that."""
        self._parser = None

    def finish(self) -> None:
        """Check that the form is complete. Raises `ClientError` if it is not."""
        if not self._ended:
            raise _invalid("it has no end")

    def members(self) -> dict[str, Any]:
        """The fields as llama-server understands them."""
        texts = {name: [given.text for given in fields] for name, fields in self._fields.items()}
        members: dict[str, Any] = {
            name: given if len(given) > 1 else given[0] for name, given in texts.items()
        }
        if isinstance(members.get("stream"), str):
            members["stream"] = members["stream"] == "true"
        limit = members.get("max_tokens")
        if isinstance(limit, str) and limit.isascii() and limit.isdecimal():
            members["max_tokens"] = int(limit)
        return members

    def changed(self, changes: Mapping[str, bytes | None]) -> Body:
        """Return the body with these fields set to JSON values. Only `_SETTABLE` fields can be set in a form.

        A field that the form has already must have a value and must not be repeated.
        """
        spans: list[tuple[int, int, bytes]] = []
        for name in _SETTABLE:
            value = changes.get(name)
            if value is None:
                continue
            text = orjson.loads(value) if value.startswith(b'"') else value.decode()
            [*_, given] = self._fields.get(name, [_Field()])
            if given.length:
                spans.append((given.start, given.start + given.length, text.encode()))
            else:
                spans.append((self._begins_at or 0, self._begins_at or 0, self._part(name, text)))
        return self._replaced(spans) if spans else self._pieces

    def _part(self, name: str, text: str) -> bytes:
        part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        return part % (self._boundary, name.encode(), text.encode())

    def _replaced(self, spans: list[tuple[int, int, bytes]]) -> Body:
        body: list[bytes | memoryview] = []
        at = 0
        for start, end, text in sorted(spans):
            body += [*self._between(at, start), text]
            at = end
        return [*body, *self._between(at, self.size)]

    def _between(self, start: int, end: int) -> list[bytes | memoryview]:
        """A range of the body, without copying: whole pieces, and views of pieces at its ends."""
        stretch: list[bytes | memoryview] = []
        at = 0
        for piece in self._pieces:
            first, last = max(start - at, 0), min(end - at, len(piece))
            if first < last:
                whole = last - first == len(piece)
                stretch.append(piece if whole else memoryview(piece)[first:last])
            at += len(piece)
        return stretch

    # -- the parser's callbacks

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"it has more than {MAX_PARTS} parts")
        self._name = self._field = None
        self._disposed = False

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            found = None if self._disposed else _disposition(self._value.strip())
            if found is None:
                raise _invalid('a part\'s Content-Disposition must be form-data; name="…", and be there once')
            self._disposed = True
            if not found["file"]:
                self._name = (found["quoted"] or found["word"] or b"").decode(errors="replace")
        self._header = self._value = b""

    def _part_data_begins(self) -> None:
        if self._name is not None:
            self._field = _Field()
            self._fields.setdefault(self._name, []).append(self._field)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        """`data` is the piece that is being fed, or the end of earlier pieces.

        The parser holds back an end that could be the beginning of a delimiter, and reports it later if it
        was not.
        """
        given = self._field
        if given is None:
            return
        if not given.length:
            given.start = self.size + start if data is self._feeding else self.size - end
        given.length += end - start
        given.value += data[start : min(end, start + MAX_FIELD_BYTES - len(given.value))]

    def _end(self) -> None:
        self._ended = True


def _invalid(reason: str) -> ClientError:
    return ClientError("invalid_request", f"the body is not a multipart form: {reason}")
