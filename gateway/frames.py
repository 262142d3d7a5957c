"""The hot path: bytes of one upstream chat stream in, frames for its client out.

    body bytes -> [template matches]  --------------------------------------> prefix + text + suffix
               -> events -> [template matches] -----------------------------> prefix + text + suffix
                         -> parse -> meter -> rewrite -> learn a template --> dump

Nearly every read holds one plain text delta that differs from the last one in its text alone; it leaves by
the first line, without a parser. Everything else is parsed once. Nothing here awaits, and nothing is decided
about the request: the relay looks at `sentinel` and `error` after each read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gateway.chunks import KEPT_APART, Chunk, Identity, frame, has_output, rewrite
from gateway.downstream import Downstream
from gateway.metering import Meter
from gateway.payload import mended, parsed
from gateway.sse import Event, EventParser, Kind
from gateway.template import Template

__all__ = ["DONE", "KEEPALIVE_COMMENT", "ChatFrames", "FrameOptions", "KeepAlive"]

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keep-alive\n\n"

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


class ChatFrames:
    """One chat stream. Whole frames go to `out`; counts go to `meter`."""

    def __init__(
        self,
        identity: Identity,
        out: Downstream,
        meter: Meter,
        options: FrameOptions,
        clock: Callable[[], float],
    ) -> None:
        self.sentinel = False
        """Whether the success sentinel has come. Nothing after it is read."""
        self.error: dict[str, Any] | None = None
        """The error object that the stream ended with. Nothing after it is read."""
        self.parsed = 0
        """Events that took the general path. The first one does."""
        self.last_event_at: float | None = None
        self.first_output_at: float | None = None
        self.unparsed = 0
        """Events whose data was not JSON as it stood."""
        self._identity = identity
        self._out = out
        self._meter = meter
        self._options = options
        self._clock = clock
        self._parser = EventParser()
        self._next: Template | None = None
        """What the next read is likely to be, if it begins an event."""
        self._templates: tuple[Template, ...] = ()
        self._role_sent = False
        self._role_expected = False
        """The gateway has said the role itself; the upstream's own role chunk is still to come."""
        self._timings: object = None
        self._inside_raw = False
        self._held_finish: Chunk | None = None

    def __repr__(self) -> str:
        return f"<ChatFrames {self.parsed} events parsed, {self._meter!r}>"

    def feed(self, body: bytes) -> bool:
        """True if it was one plain text delta: then nothing else about the stream has changed."""
        template = self._next
        if template is not None:
            text = template.text_of_event(body)
            if text is not None:
                self.last_event_at = self._clock()
                self._meter.deltas += 1
                self._out.delta(template, text)
                return True
        self._read(self._parser.feed(body))
        aligned = not self._parser.pending and not self.sentinel and self.error is None
        self._next = self._templates[0] if aligned and self._templates else None
        return False

    def finish(self) -> None:
        """The body has ended. What stands without its blank line is read if it is whole."""
        self._read([event for event in self._parser.finish() if _is_whole(event)])
        if self._held_finish is not None and self.error is None:
            self._emit(self._held_finish)
            self._held_finish = None

    def keepalive(self) -> bytes:
        """What to send into a silence now; empty if nothing."""
        if self._options.keepalive == "comment":
            return b"" if self._inside_raw else KEEPALIVE_COMMENT
        if self._options.keepalive == "off" or self.first_output_at is not None or self._inside_raw:
            return b""
        role = b""
        if not self._role_sent:
            role = frame(self._empty_chunk({"role": "assistant", "content": None}))
            self._role_sent = self._role_expected = True
        chunk = self._empty_chunk({})
        if self._options.running_usage:
            chunk["usage"] = self._meter.running_usage()
        if self._timings is not None:
            chunk["timings"] = self._timings
        return role + frame(chunk)

    def error_frame(self, error: bytes) -> bytes:
        """The last frame of a stream that failed; a raw event that was cut off is ended first."""
        return (b"\n\n" if self._inside_raw else b"") + b"data: " + error + b"\n\n"

    # -- events

    def _read(self, events: list[Event]) -> None:
        for event in events:
            if self.sentinel or self.error is not None:
                return
            if event.kind is Kind.COMMENT:
                self._comment(event.data)
                continue
            self.parsed += 1
            self.last_event_at = self._clock()
            if event.kind is Kind.ERROR_FIELD or event.name == b"error":
                said = mended(event.data) or {"message": event.data.decode(errors="replace")}
                self.error = _error_object(said.get("error") or said)
            elif event.kind is Kind.MESSAGE:
                self._message(event.data)
            else:
                self._inside_raw = not event.data.endswith(b"\n\n")
                self._out.put(event.data)

    def _comment(self, text: bytes) -> None:
        """The upstream's own comments pass at event borders, but commit nothing."""
        if self._options.keepalive == "comment" and self._out.committed and not self._inside_raw:
            self._out.put(b": %s\n\n" % text if text else b":\n\n")

    def _message(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.sentinel = True
            return
        for template in self._templates:
            text = template.text_of(payload)
            if text is not None:
                if template is not self._templates[0]:
                    self._templates = (
                        template,
                        *(other for other in self._templates if other is not template),
                    )
                self._meter.deltas += 1
                self._out.delta(template, text)
                return
        chunk = parsed(payload)
        if chunk is None and payload != b"null":  # which an answer to an array of prompts begins with
            self.unparsed += 1
            chunk = mended(payload)
            if chunk is None:
                self._pass_on(payload)
        if chunk is not None and chunk.get("error"):
            self.error = _error_object(chunk["error"])
        elif chunk is not None:
            self._chunk(payload, chunk)

    def _pass_on(self, payload: bytes) -> None:
        """What is no JSON object passes as the text that it is."""
        text = payload.decode(errors="replace").encode()
        self._out.put(b"data: " + text.replace(b"\n", b"\ndata: ") + b"\n\n")

    # -- chunks

    def _chunk(self, payload: bytes, chunk: Chunk) -> None:
        self._meter.read(chunk)
        if has_output(chunk):
            self._meter.deltas += 1
            if self.first_output_at is None:
                self.first_output_at = self._clock()
        elif self._role_expected and _is_role_only(chunk):
            self._role_expected = False
            return
        if self._options.withhold_usage and self._withheld(chunk):
            return
        if self._options.strip_timings and chunk.get("choices") and not _finishes(chunk):
            chunk.pop("timings", None)
        self._timings = chunk.get("timings")
        if not self._options.running_usage:
            self._learn(payload, chunk)
        self._emit(chunk)

    def _learn(self, payload: bytes, chunk: Chunk) -> None:
        """Take the short way from the next chunk on that differs from this one in its text alone."""
        template = Template.learn(payload, chunk, self._identity)
        if template is not None:
            others = (known for known in self._templates if known.kind != template.kind)
            self._templates = (template, *others)

    def _emit(self, chunk: Chunk) -> None:
        for part in rewrite(chunk, self._identity):
            if self._options.running_usage and self._role_sent and part.get("usage") is None:
                part["usage"] = self._meter.running_usage()
            self._out.put(frame(part))
            self._role_sent = True

    def _withheld(self, chunk: Chunk) -> bool:
        """Hold a finish chunk until the usage chunk has come: the timings in it belong to the former."""
        held = self._held_finish
        if _finishes(chunk):
            self._held_finish = chunk
        elif chunk.get("choices") or chunk.get("usage") is None:
            return False
        else:
            self._held_finish = None
            if held is not None and "timings" in chunk:
                held.setdefault("timings", chunk["timings"])
        if held is not None:
            self._emit(held)
        return True

    def _empty_chunk(self, delta: dict[str, Any]) -> Chunk:
        return {
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            "created": self._identity.created,
            "id": self._identity.id,
            "model": self._identity.model,
            "object": "chat.completion.chunk",
        }


def _is_whole(event: Event) -> bool:
    """Whether an event without its blank line was not cut off on the way."""
    if event.kind in (Kind.COMMENT, Kind.RAW):
        return True
    return event.data == b"[DONE]" or parsed(event.data) is not None


def _error_object(error: object) -> dict[str, Any]:
    return error if isinstance(error, dict) else {"message": str(error)}


def _choices(chunk: Chunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _finishes(chunk: Chunk) -> bool:
    return any(choice.get("finish_reason") for choice in _choices(chunk))


def _is_role_only(chunk: Chunk) -> bool:
    """A chunk that says who speaks in the first choice, and nothing else."""
    choices = _choices(chunk)
    if len(choices) != 1 or choices[0].get("index", 0) != 0:
        return False
    if _finishes(chunk) or any(chunk.get(name) is not None for name in KEPT_APART):
        return False
    delta = choices[0].get("delta")
    return (
        isinstance(delta, dict)
        and "role" in delta
        and not any(value for name, value in delta.items() if name != "role")
    )
