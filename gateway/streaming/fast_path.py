"""The fast path of a stream: one read that is one chunk that is one plain text delta becomes one write.

Nearly every read is that. llama-server writes a token as one HTTP chunk, and it comes as one read; its client
keeps up, so nothing waits before it. Then neither the parser of the upstream's HTTP nor the buffer of the
client has anything to add, and a token costs what the two sockets cost:

    b8 CRLF data: {head}text{tail} LF LF CRLF   ->   a1 CRLF data: {prefix}text{suffix} LF LF CRLF

Of a stream only the text and the two sizes change, and the sizes follow from the length of the read: so all
that stands before the text is made once for each length. Whatever is not exactly so is left alone, and takes
the long way with all that follows from it.
"""

from __future__ import annotations

from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.streaming.direct_writer import DirectWriter
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.template import OWN_JSON_FORM, Template, canonical

__all__ = ["LONGEST", "FastPath"]

LONGEST = 40
"""Bytes of a text. A longer one is hardly a token, and pays for its parser: what is kept for each length that
the texts of a stream have comes to half a kilobyte."""
_NO_WAY = b"", b"", -1


class FastPath:
    """For one template of one stream."""

    __slots__ = ("_out", "_suffix", "_tail", "_token_usage", "_ways", "_writer", "template")

    def __init__(
        self, template: Template, writer: DirectWriter, out: Downstream, token_usage: TokenUsage
    ) -> None:
        """`out` hears of errors."""
        self.template = template
        self._writer = writer
        self._out = out
        self._token_usage = token_usage
        self._tail = template.event_tail + b"\r\n"
        self._suffix = template.suffix + b"\r\n"
        self._ways: dict[int, tuple[bytes, bytes, int]] = {}
        """By the length of a read: what it begins with, what is written instead, how long its text is."""

    def __repr__(self) -> str:
        return f"<FastPath {self.template!r}>"

    def take(self, read: bytes) -> bool:
        """Whether this read, which begins where a chunk begins, was all that, and has been dealt with."""
        try:
            write = self._writer.now
            if write is None:
                return False
            theirs, ours, length = self._ways.get(len(read)) or self._way(len(read))
            text = read.removeprefix(theirs).removesuffix(self._tail)
            if len(text) != length or (text.translate(OWN_JSON_FORM) != text and canonical(text) != text):
                return False
            write(b"".join((ours, text, self._suffix)))
            self._token_usage.deltas += 1
        except Exception as error:
            self._out.fail(error)
        return True

    def _way(self, length: int) -> tuple[bytes, bytes, int]:
        template = self.template
        for digits in range(1, 5):
            size = length - digits - 4
            text = size - len(template.event_head) - len(template.event_tail)
            if 0 < text <= LONGEST and len(b"%x" % size) == digits:
                theirs = b"%x\r\n%b" % (size, template.event_head)
                ours = b"%x\r\n%b" % (len(template.prefix) + text + len(template.suffix), template.prefix)
                way = self._ways[length] = theirs, ours, text
                return way
        return _NO_WAY
