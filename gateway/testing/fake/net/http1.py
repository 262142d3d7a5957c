"""HTTP/1.1 framing for both ends of a connection: bytes go in, heads and bodies come out.

It is written by hand and strict on purpose: the gateway parses with llhttp, so a framing fault that llhttp
forgives shows here. This module does no IO. Both readers keep the bytes that belong to the next message.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BodyReader", "FramingError", "Head", "Message", "MessageReader", "parse_head"]

_HEAD_END = b"\r\n\r\n"


class FramingError(ValueError):
    """The peer broke the rules of RFC 9112."""


@dataclass(frozen=True, slots=True)
class Head:
    """A start line and its headers: names in lower case, order and repetition kept."""

    start_line: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def get(self, name: bytes) -> bytes | None:
        """Return the value of a header, or None. Raises `FramingError` if the header came more than once."""
        values = self.all(name)
        if len(values) > 1:
            raise FramingError(f"{name!r} came {len(values)} times: {values}")
        return values[0] if values else None


def parse_head(raw: bytes) -> Head:
    start_line, *lines = raw.split(b"\r\n")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise FramingError(f"not a header line: {line!r}")
        headers.append((name.lower(), value.strip()))
    return Head(start_line, tuple(headers))


class BodyReader:
    """Takes one message body from a byte stream.

    `feed` returns decoded bytes. Once `done`, `leftover` holds the bytes behind the message.
    """

    def __init__(self, head: Head, *, until_eof: bool) -> None:
        """Without a framing header, `until_eof` True reads to EOF (responses), False means no body."""
        self.chunked = (head.get(b"transfer-encoding") or b"").lower() == b"chunked"
        length = head.get(b"content-length")
        if self.chunked and length is not None:
            raise FramingError("both content-length and transfer-encoding")
        self._needed = int(length) if length is not None else 0
        self._until_eof = until_eof and length is None and not self.chunked
        self._pending = bytearray()
        self.done = not self.chunked and not self._until_eof and self._needed == 0
        self.leftover = b""

    def feed(self, data: bytes) -> bytes:
        if self.done:
            self.leftover += data
            return b""
        if self._until_eof:
            return data
        return self._feed_chunked(data) if self.chunked else self._feed_length(data)

    def end(self) -> bool:
        """Note that the stream ended here. Return True if the message is complete."""
        self.done = self.done or self._until_eof
        return self.done

    def _feed_length(self, data: bytes) -> bytes:
        taken, rest = data[: self._needed], data[self._needed :]
        self._needed -= len(taken)
        if not self._needed:
            self._finish(rest)
        return taken

    def _feed_chunked(self, data: bytes) -> bytes:
        self._pending += data
        out = []
        while not self.done and (chunk := self._take_chunk()) is not None:
            out.append(chunk)
        return b"".join(out)

    def _take_chunk(self) -> bytes | None:
        line_end = self._pending.find(b"\r\n")
        if line_end < 0:
            return None
        line = bytes(self._pending[:line_end])
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise FramingError(f"not a chunk size: {line!r}") from error
        start, end = line_end + 2, line_end + 2 + size
        if len(self._pending) < end + 2:
            return None
        if self._pending[end : end + 2] != b"\r\n":
            raise FramingError(f"chunk of {size} bytes does not end in CRLF")
        chunk = bytes(self._pending[start:end])
        del self._pending[: end + 2]
        if size == 0:
            self._finish(bytes(self._pending))
        return chunk

    def _finish(self, leftover: bytes) -> None:
        self.done, self.leftover, self._pending = True, leftover, bytearray()


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message. `raw` holds its bytes as they came."""

    head: Head
    body: bytes
    raw: bytes


class MessageReader:
    """Cuts a byte stream into whole messages. One read may hold several messages, or a part of one."""

    def __init__(self) -> None:
        self._begin()

    def feed(self, data: bytes) -> list[Message]:
        messages = []
        while data:
            self._raw += data
            data = self._advance(data)
            if self._head is not None and self._reader is not None and self._reader.done:
                raw = bytes(self._raw[: len(self._raw) - len(data)])
                messages.append(Message(self._head, bytes(self._body), raw))
                self._begin()
        return messages

    def expects_continue(self, data: bytes) -> bool:
        """Return True if `data`, which was fed last, ends a head whose sender waits for `100 Continue`."""
        head = self._head
        waits = (
            head is not None and not self._body and (head.get(b"expect") or b"").lower() == b"100-continue"
        )
        return waits and data.endswith(_HEAD_END)

    def _begin(self) -> None:
        self._raw = bytearray()
        self._body = bytearray()
        self._head: Head | None = None
        self._reader: BodyReader | None = None

    def _advance(self, data: bytes) -> bytes:
        """Consume `data` and return the bytes behind the end of this message."""
        if self._reader is None:
            head_end = self._raw.find(_HEAD_END)
            if head_end < 0:
                return b""
            self._head = parse_head(bytes(self._raw[:head_end]))
            self._reader = BodyReader(self._head, until_eof=False)
            data = bytes(self._raw[head_end + len(_HEAD_END) :])
        self._body += self._reader.feed(data)
        return self._reader.leftover
