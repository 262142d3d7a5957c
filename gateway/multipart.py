"""A multipart form on its way through: held once, in the pieces in which it came, and read as it comes.

Of a transcription the gateway has to know the small fields only: the model, and whether to stream. The file
is never looked at, joined or copied. To set the model, the form leaves as the same pieces around a new value.
"""

from __future__ import annotations

import re
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.body import Body
from gateway.errors import ClientError

__all__ = ["Form", "boundary_of"]

MAX_FIELD_BYTES = 8192
"""Longer fields pass, but are not read."""
MAX_PARTS = 64
_TRUE = ("true", "1", "yes", "on")
_is_boundary = re.compile(rb"[ -~]{0,69}[!-~]").fullmatch


def boundary_of(content_type: bytes) -> bytes:
    """Raises `ClientError` where the body is no form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind.lower() != b"multipart/form-data" or not _is_boundary(boundary):
        message = "the body must be multipart/form-data, with a boundary"
        raise ClientError("invalid_request", message, param="content-type")
    return boundary


class Form:
    def __init__(self, boundary: bytes) -> None:
        self.size = 0
        self._boundary = boundary
        self._pieces: list[bytes] = []
        self._fields: dict[str, bytes] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        """Where in the body the value of each field stands."""
        self._parts = 0
        self._header = b""
        self._value = b""
        self._name: str | None = None
        """Of the part that is being read, if it is a field to be read."""
        self._ended = False
        self._parser = MultipartParser(
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
        """Raises `ClientError` for what is no form."""
        try:
            self._parser.write(piece)
        except MultipartParseError as error:
            raise _invalid(str(error)) from error
        self._pieces.append(piece)
        self.size += len(piece)

    def finish(self) -> None:
        if not self._ended:
            raise _invalid("it has no end")

    def members(self) -> dict[str, Any]:
        """The small fields, with `stream` as a truth value."""
        members: dict[str, Any] = {
            name: value.decode(errors="replace") for name, value in self._fields.items()
        }
        if "stream" in members:
            members["stream"] = members["stream"].strip().lower() in _TRUE
        return members

    def with_model(self, name: str | None) -> Body:
        """The body for the backend; with another model, if one is given."""
        if name is None:
            return self._pieces
        if "model" not in self._spans:
            part = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
            return [part % (self._boundary, name.encode()), *self._pieces]
        start, end = self._spans["model"]
        return [*self._between(0, start), name.encode(), *self._between(end, self.size)]

    def _between(self, start: int, end: int) -> list[memoryview]:
        """A stretch of the body, without copying."""
        stretch: list[memoryview] = []
        at = 0
        for piece in self._pieces:
            first, last = max(start - at, 0), min(end - at, len(piece))
            if first < last:
                stretch.append(memoryview(piece)[first:last])
            at += len(piece)
        return stretch

    # -- the parser's callbacks: a stretch of the piece that is being fed

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"it has more than {MAX_PARTS} parts")
        self._name = None

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"name")
            if name is not None and b"filename" not in options:
                self._name = name.decode(errors="replace")
        self._header = self._value = b""

    def _part_data_begins(self) -> None:
        if self._name is not None:
            self._fields.setdefault(self._name, b"")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            return
        first = self._spans.get(self._name, (self.size + start, 0))[0]
        self._spans[self._name] = (first, self.size + end)
        value = self._fields.get(self._name, b"") + data[start:end]
        if len(value) > MAX_FIELD_BYTES:
            self._fields.pop(self._name, None)
            self._name = None
        else:
            self._fields[self._name] = value

    def _end(self) -> None:
        self._ended = True


def _invalid(reason: str) -> ClientError:
    return ClientError("invalid_request", f"the body is not a multipart form: {reason}")
