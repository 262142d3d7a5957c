"""The fast path of a stream: a read that is one chunk with one plain text delta becomes one write.

Nearly every read is of that kind. llama-server writes a token as one HTTP chunk, and it arrives as one read;
its client keeps up, so nothing waits before it. Then neither the HTTP parser of the upstream nor the client's
buffer has anything to add, and a token costs no more than the two sockets:

    b8 CRLF data: {head}text{tail} LF LF CRLF   ->   a1 CRLF data: {prefix}text{suffix} LF LF CRLF

Within a stream only the text and the two sizes change, and the sizes follow from the length of the read. So
all bytes before the text are made once for each length. Any other read takes the general path.

`FastPath` decides whether a read may be written directly. The other objects only report what they know:

    upstream connection   offers a read only if it begins at a chunk boundary
    frames                set `expected` while the parser holds no part of an event and the stream goes on
    downstream            opens the writer while its buffer is empty, and shuts it when something is put
    chunk writer          has a `now` only while it is open and the client keeps up
"""

from __future__ import annotations

from collections.abc import Callable

from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.template import OWN_JSON_FORM, Template, canonical

__all__ = ["MAX_TEXT_BYTES", "FastPath"]

MAX_TEXT_BYTES = 40
"""A longer text is hardly a token, and takes the general path: this bounds the layouts that are kept for each
stream, one for each length of its texts, to half a kilobyte."""
Layout = tuple[bytes, bytes, int]
"""The bytes before the text in a read, the bytes before it in the write, and the length of the text."""
_NO_LAYOUT = b"", b"", -1
"""No text has this length, so a read with this layout is parsed."""


class _Layouts(dict[int, Layout]):
    """Length of a read -> its layout, for the reads that match one template. Layouts are made when needed."""

    __slots__ = ("_template",)

    def __init__(self, template: Template) -> None:
        super().__init__()
        self._template = template

    def __missing__(self, length: int) -> Layout:
        template = self._template
        for digits in range(1, 5):
            size = length - digits - 4
            text = size - len(template.event_head) - len(template.event_tail)
            if 0 < text <= MAX_TEXT_BYTES and len(b"%x" % size) == digits:
                theirs = b"%x\r\n%b" % (size, template.event_head)
                ours = b"%x\r\n%b" % (len(template.prefix) + text + len(template.suffix), template.prefix)
                layout = self[length] = theirs, ours, text
                return layout
        return _NO_LAYOUT


class FastPath:
    """Belongs to one stream."""

    __slots__ = ("_layouts", "_out", "_suffix", "_tail", "_template", "_token_usage", "_writer", "expected")

    def __init__(self, out: Downstream, token_usage: TokenUsage) -> None:
        self.expected: Template | None = None
        """The template that the next event is likely to match; None if the next read must be parsed."""
        self._out = out
        self._writer = out.writer
        self._token_usage = token_usage
        self._template: Template | None = None
        """The template for which the fields below are made."""
        self._tail = self._suffix = b""
        self._layouts: dict[int, Layout] = {}

    def __repr__(self) -> str:
        return f"<FastPath {self.expected!r}>"

    def for_next_read(self) -> Callable[[bytes], bool] | None:
        """Return the function to offer the next read to, or None if the next read must be parsed."""
        template = self.expected
        if template is None or self._writer is None:
            return None
        if template is not self._template:
            self._template = template
            self._tail = template.event_tail + b"\r\n"
            self._suffix = template.suffix + b"\r\n"
            self._layouts = _Layouts(template)
        return self.take

    def take(self, read: bytes) -> bool:
        """Write this read to the client and return True, or return False if it must be parsed.

        The read must begin at a chunk boundary. An error of the write becomes the error of the stream.
        """
        try:
            write = self._writer.now  # type: ignore[union-attr]  # see `for_next_read`
            if write is None:
                return False
            theirs, ours, length = self._layouts[len(read)]
            text = read.removeprefix(theirs).removesuffix(self._tail)
            if len(text) != length or (text.translate(OWN_JSON_FORM) != text and canonical(text) != text):
                return False
            write(b"".join((ours, text, self._suffix)))
            self._token_usage.deltas += 1
        except Exception as error:
            self._out.fail(error)
        return True
