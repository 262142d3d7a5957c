"""The hot path: bytes of one upstream chat stream in, frames for its client out.

    body bytes -> [template matches]  --------------------------------------> prefix + text + suffix
               -> events -> [template matches] -----------------------------> prefix + text + suffix
                         -> parse -> meter -> rewrite -> learn a template --> dump

Nearly every read holds one plain text delta that differs from the last one in its text alone; it leaves by
the first line, without a parser. Everything else is parsed once. Nothing here awaits, and nothing is decided
about the request: the relay looks at `sentinel` and `error` after each read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.chunks import Chunk, Identity, frame, has_output, rewrite
from gateway.downstream import Downstream
from gateway.metering import Meter
from gateway.sse import Event, EventParser, Kind
from gateway.template import Template

__all__ = ["DONE", "KEEPALIVE_COMMENT", "ChatFrames", "FrameOptions", "KeepAlive"]

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keep-alive\n\n"

KeepAlive = Literal["comment", "chunk", "off"]

_escapes = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


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
        self.events = 0
        self.last_event_at: float | None = None
        self.first_output_at: float | None = None
        self.unparsed = 0
        self._identity = identity
        self._out = out
        self._meter = meter
        self._options = options
        self._clock = clock
        self._parser = EventParser()
        self._aligned = False
        self._templates: tuple[Template, ...] = ()
        self._role_sent = False
        self._inside_raw = False
        self._held_finish: Chunk | None = None

    def __repr__(self) -> str:
        return f"<ChatFrames {self.events} events, {self._meter!r}>"

    def feed(self, body: bytes) -> None:
        if self._aligned:
            for template in self._templates:
                text = template.text_of_event(body)
                if text is not None:
                    self.events += 1
                    self.last_event_at = self._clock()
                    self._meter.deltas += 1
                    self._out.delta(template, text)
                    return
        self._read(self._parser.feed(body))
        self._aligned = not self._parser.pending

    def finish(self) -> None:
        """The body has ended; read what stands without its blank line."""
        self._read(self._parser.finish())
        if self._held_finish is not None and self.error is None:
            self._emit(self._held_finish)
            self._held_finish = None

    def keepalive(self) -> bytes:
        """What to send into a silence now; empty if nothing."""
        if self._options.keepalive == "comment":
            return b"" if self._inside_raw else KEEPALIVE_COMMENT
        if self._options.keepalive == "off" or self.first_output_at is not None or self._inside_raw:
            return b""
        role = b"" if self._role_sent else frame(self._empty_chunk({"role": "assistant", "content": None}))
        self._role_sent = True
        chunk = self._empty_chunk({})
        if self._options.running_usage:
            chunk["usage"] = self._meter.running_usage()
        return role + frame(chunk)

    # -- events

    def _read(self, events: list[Event]) -> None:
        for event in events:
            if self.sentinel or self.error is not None:
                return
            if event.kind is Kind.COMMENT:
                self._comment(event.data)
                continue
            self.events += 1
            self.last_event_at = self._clock()
            if event.kind is Kind.MESSAGE:
                self._message(event.data)
            elif event.kind is Kind.ERROR_FIELD:
                self.error = _error_object(_parse(event.data) or event.data.decode(errors="replace"))
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
                self._meter.deltas += 1
                self._out.delta(template, text)
                return
        chunk = _parse(payload)
        if chunk is None:
            self._unreadable(payload)
        elif chunk.get("error"):
            self.error = _error_object(chunk["error"])
        else:
            self._chunk(payload, chunk)

    def _unreadable(self, payload: bytes) -> None:
        """Not a JSON object. `null` is what an array of prompts begins with; other text passes as text."""
        self.unparsed += 1
        if payload != b"null":
            self._out.put(b"data: " + payload.decode(errors="replace").encode() + b"\n\n")

    # -- chunks

    def _chunk(self, payload: bytes, chunk: Chunk) -> None:
        self._meter.read(chunk)
        if has_output(chunk):
            self._meter.deltas += 1
            self.first_output_at = self.first_output_at or self._clock()
        elif self._role_sent and _is_role_only(chunk):
            return
        if self._options.withhold_usage and self._withheld(chunk):
            return
        template = None if self._options.running_usage else Template.learn(payload, chunk, self._identity)
        if template is None:
            self._emit(chunk)
            return
        others = (known for known in self._templates if known.kind != template.kind)
        self._templates = (template, *others)
        text = template.text_of(payload)
        if text is None:
            self._emit(chunk)
        else:
            self._out.delta(template, text)

    def _emit(self, chunk: Chunk) -> None:
        if self._options.strip_timings and not _finishes(chunk):
            chunk.pop("timings", None)
        if self._options.running_usage and self._role_sent and chunk.get("usage") is None:
            chunk["usage"] = self._meter.running_usage()
        for part in rewrite(chunk, self._identity):
            self._out.put(frame(part))
        self._role_sent = True

    def _withheld(self, chunk: Chunk) -> bool:
        """Hold the finish chunk until the usage chunk has come; its timings belong to the finish chunk."""
        held = self._held_finish
        if held is None:
            self._held_finish = chunk if _finishes(chunk) else None
            return self._held_finish is not None
        if chunk.get("choices"):
            return False
        if "timings" in chunk:
            held.setdefault("timings", chunk["timings"])
        self._held_finish = None
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


def _parse(payload: bytes) -> dict[str, Any] | None:
    """A JSON object, forgiving bad UTF-8 and lone surrogates; None if it is none."""
    try:
        parsed = orjson.loads(payload)
    except orjson.JSONDecodeError:
        text = payload.decode(errors="replace")
        mended = _escapes.sub(lambda found: found[1] or "\\ufffd", text)
        try:
            parsed = orjson.loads(mended)
        except orjson.JSONDecodeError:
            return None
    return parsed if isinstance(parsed, dict) else None


def _error_object(error: object) -> dict[str, Any]:
    return error if isinstance(error, dict) else {"message": str(error)}


def _choices(chunk: Chunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _finishes(chunk: Chunk) -> bool:
    return any(choice.get("finish_reason") for choice in _choices(chunk))


def _is_role_only(chunk: Chunk) -> bool:
    """A chunk that says who speaks and nothing else, after the gateway has said so itself."""
    if any(chunk.get(name) is not None for name in ("usage", "timings", "prompt_progress")) or _finishes(
        chunk
    ):
        return False
    deltas = [choice.get("delta") for choice in _choices(chunk)]
    return (
        len(deltas) == 1
        and isinstance(deltas[0], dict)
        and "role" in deltas[0]
        and not deltas[0].get("content")
    )
