"""What the mechanism of a stream (`slotgate.gateway.streaming.frames`) has to know of a protocol.

A dialect answers few questions about one parsed chunk: does it end its part, is it an error, does it carry
output, is it plain text and nothing else; and it says what leaves in its place. One object serves one stream
and may remember what passed. Nothing here awaits or sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from slotgate.gateway.api.chunks import Chunk, Identity, dumped, frame
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import GatewayError

__all__ = ["DONE", "KEEPALIVE_COMMENT", "Dialect", "FrameOptions", "KeepAlive", "named_frame"]

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keep-alive\n\n"

_is_word = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch

KeepAlive = Literal["comment", "chunk", "off"]


@dataclass(frozen=True, slots=True)
class FrameOptions:
    keepalive: KeepAlive = "comment"
    running_usage: bool = False
    """Every chunk after the role chunk states the usage so far (`continuous_usage_stats`)."""
    strip_timings: bool = False
    """The gateway asked for `timings_per_token` to know the running usage; the client did not."""
    withhold_usage: bool = False
    """The gateway asked for the usage chunk; the client did not."""
    parts: int = 1
    """How many streams the answer holds, told apart by their index: choices times prompts."""


class Dialect:
    """The common part: chunks in `data` lines of events without a name, unchanged but for the model."""

    done: ClassVar[bytes] = b""
    """The data of the event that says success, where that is no chunk."""
    heartbeat: ClassVar[bytes] = KEEPALIVE_COMMENT
    """What breaks a silence in comment form."""

    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        self.options = options
        self._identity = identity
        self._token_usage = token_usage
        self._left = options.parts
        """Parts of the answer that have not ended."""

    # -- what a chunk is

    def error_in(self, chunk: Chunk) -> dict[str, Any] | None:
        """The error object, if the chunk is the failure of the stream."""
        error = chunk.get("error")
        if not error:
            return None
        return error if isinstance(error, dict) else {"message": str(error)}

    def ends_part(self, _: Chunk) -> bool:
        """Whether the chunk is the last of a success, of each part of the answer."""
        return False

    def ends(self, chunk: Chunk) -> bool:
        """Whether the chunk ends the stream. It waits for the end of the upstream's message. Asked once."""
        if self.ends_part(chunk):
            self._left -= 1
        return self._left <= 0

    def has_output(self, _: Chunk) -> bool:
        """Whether the chunk carries something that the model made."""
        return False

    def plain(self, _: Chunk) -> tuple[str, str] | None:
        """(kind, text) if text is all that tells this chunk from the next of its kind."""
        return None

    # -- what leaves for it

    def rewritten(self, chunk: Chunk) -> list[Chunk]:
        """The chunk under the gateway's identity. Remembers nothing: a template is learnt from it."""
        if "model" in chunk:
            chunk["model"] = self._identity.model
        return [chunk]

    def take(self, chunk: Chunk) -> list[Chunk]:
        """What leaves for the next chunk; may be nothing."""
        return self.rewritten(chunk)

    def rest(self) -> list[Chunk]:
        """What was held back, at the end of the body."""
        return []

    def learns(self) -> bool:
        """Whether the short way writes what `take` does."""
        return True

    def frame(self, chunk: Chunk) -> bytes:
        return frame(chunk)

    # -- what the gateway says itself

    def keepalive_chunk(self, *, begun: bool) -> bytes:
        """What breaks a silence in chunk form; `begun` once output has passed."""
        del begun
        return self.heartbeat

    def failure(self, error: GatewayError) -> bytes:
        """The last frame of a stream that failed."""
        return b"data: " + error.body() + b"\n\n"


def named_frame(chunk: Chunk) -> bytes:
    """An event whose name is the chunk's type, as Responses and Anthropic's messages have it.

    A type that is no word is none: a line's end in it would end the line.
    """
    kind = chunk.get("type")
    name = kind if isinstance(kind, str) and _is_word(kind) else "message"
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumped(chunk))
