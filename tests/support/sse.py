"""Cuts a body into server-sent events. No IO.

A frame is everything up to and including a blank line (LF, CRLF or CR line ends), unchanged. Comments are
frames too, because tests check them.
"""

from __future__ import annotations

import re

import orjson

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r(?=.)", re.DOTALL)


class FrameReader:
    def __init__(self) -> None:
        self.rest = b""
        """The bytes behind the last complete frame."""

    def feed(self, data: bytes) -> list[bytes]:
        self.rest += data
        frames = []
        while found := _BLANK_LINE.search(self.rest):
            frames.append(self.rest[: found.end()])
            self.rest = self.rest[found.end() :]
        return frames


def data_of(frame: bytes) -> bytes:
    """Return the data lines of a frame, joined as the HTML standard says. Empty for a comment."""
    lines = [line for line in re.split(rb"\r\n|\n|\r", frame) if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def text_of(frame: bytes) -> str | None:
    """Return the content of a chat chunk's first choice, or None for other frames."""
    content = data_of(frame)
    if not content.startswith(b"{"):
        return None
    choices = orjson.loads(content).get("choices") or [{}]
    text = choices[0].get("delta", {}).get("content")
    return text if isinstance(text, str) else None


def index_of(frame: bytes) -> int | None:
    """Return the number that `numbered_event` put into a frame, or None for other frames."""
    text = text_of(frame)
    return int(text) if text is not None and text.strip().isdigit() else None
