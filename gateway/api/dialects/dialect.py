"""The interface of a streaming protocol to `slotgate.gateway.streaming.frames`.

A dialect answers questions about one parsed chunk: does it end its part, is it an error, does it carry
output, is it plain text and nothing else. It also returns the chunks that leave in its place. One object
serves one stream and may remember earlier chunks. Nothing here awaits or sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from slotgate.gateway.api.chunks import Chunk, Identity, data_frame, encode
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import GatewayError

__all__ = ["DONE", "KEEPALIVE_COMMENT", "Dialect", "FrameOptions", "KeepAlive", "named_frame"]

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keep-alive\n\n"

_is_word = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch

KeepAlive = Literal["comment", "chunk", "off"]


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """Options for writing one stream to its client."""

    keepalive: KeepAlive = "comment"
    running_usage: bool = False
    """Every chunk after the role chunk states the usage so far (`continuous_usage_stats`)."""
    strip_timings: bool = False
    """The gateway asked for `timings_per_token` to know the running usage; the client did not."""
    withhold_usage: bool = False
    """The gateway asked for the usage chunk; the client did not."""
    withheld: tuple[str, ...] = ()
    """Members that the gateway asked for in the last chunk; the client did not."""
    parts: int = 1
    """The number of parts in the answer, told apart by their index: choices times prompts."""


class Dialect:
    """The base of all dialects: events without a name, in which only the model is replaced."""

    named: ClassVar[bool] = False
    """True if the protocol's events have names."""
    done: ClassVar[bytes] = b""
    """The data of the event that ends a stream, if the protocol has one that is not a chunk."""
    heartbeat: ClassVar[bytes] = KEEPALIVE_COMMENT
    """The bytes of a keep-alive in comment form."""

    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        self.options = options
        self._identity = identity
        self._token_usage = token_usage
        self._open_parts = options.parts
        """Parts of the answer that have not ended."""

    # -- questions about an upstream chunk

    def error_in(self, chunk: Chunk) -> dict[str, Any] | None:
        """Return the error object if the chunk says that the stream failed, else None."""
        error = chunk.get("error")
        if not error:
            return None
        return error if isinstance(error, dict) else {"message": str(error)}

    def ends_part(self, _: Chunk) -> bool:
        """Return True if the chunk is the last one of a part of the answer."""
        return False

    def ends(self, chunk: Chunk) -> bool:
        """Return True if the chunk ends the last open part. To be called once for each chunk."""
        if self.ends_part(chunk):
            self._open_parts -= 1
        return self._open_parts <= 0

    def has_output(self, _: Chunk) -> bool:
        """Return True if the chunk carries output of the model."""
        return False

    def is_reasoning(self, _: Chunk) -> bool:
        """Return True if the output that the chunk carries is reasoning and nothing else."""
        return False

    def plain(self, _: Chunk) -> tuple[str, str] | None:
        """Return (kind, text) if the chunk differs from others of its kind by its text alone, else None."""
        return None

    # -- the chunks that leave

    def rewritten(self, chunk: Chunk) -> list[Chunk]:
        """Return the chunk under the gateway's identity.

        Remembers nothing, because templates are made by calling this with invented text.
        """
        if "model" in chunk:
            chunk["model"] = self._identity.model
        return [chunk]

    def take(self, chunk: Chunk) -> list[Chunk]:
        """Return the chunks that leave for the next upstream chunk; there may be none."""
        return self.rewritten(chunk)

    def flush(self) -> list[Chunk]:
        """Return the chunks held back until now. To be called at the end of the upstream's body."""
        return []

    def uses_templates(self) -> bool:
        """Return True if plain chunks may be written from a template, with the same bytes as by `take`."""
        return True

    def frame(self, chunk: Chunk) -> bytes:
        """Return the bytes of one event."""
        return data_frame(chunk)

    # -- events that are too large to be parsed

    def identity_members(self) -> dict[bytes, bytes]:
        """Return the members of a chunk that state its identity, with the gateway's values as JSON."""
        return {b"model": encode(self._identity.model)}

    def beginning(self, name: bytes) -> bytes:
        """Return the bytes of an event before its data. `name` is the upstream's name of the event."""
        named = self.named and _is_word(name.decode(errors="replace"))
        return b"event: %b\ndata: " % name if named else b"data: "

    # -- frames of the gateway's own

    def keepalive_chunk(self, *, begun: bool) -> bytes:
        """Return the bytes of a keep-alive in chunk form. `begun` is True once output has passed."""
        del begun
        return self.heartbeat

    def failure(self, error: GatewayError) -> bytes:
        """Return the last frame of a stream that failed."""
        return b"data: " + error.body() + b"\n\n"


def named_frame(chunk: Chunk) -> bytes:
    """Return an event named by the chunk's type, as in OpenAI's Responses and Anthropic's Messages.

    A type with other characters than those of a name is not used: a line break in it would end the line.
    """
    kind = chunk.get("type")
    name = kind if isinstance(kind, str) and _is_word(kind) else "message"
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(chunk))
