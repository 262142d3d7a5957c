"""The hot path: bytes of one upstream stream in, frames for its client out.

    a read -> [one chunk, the template matches] ----------------------------> prefix + text + suffix, at once
           -> body bytes -> [template matches]  ----------------------------> prefix + text + suffix
                         -> events -> [template matches] -------------------> prefix + text + suffix
                                   -> parse -> usage -> dialect -> learn ---> dump

Nearly every read holds one plain text delta that differs from the one before only in its text. It takes the
first line, the fast path, and no parser sees it. Everything else is parsed once, and the protocol's dialect
decides what the client gets for it. This module never awaits and decides nothing about the request: the relay
looks at `sentinel` and `error` after each read that was more than one plain delta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects import Dialect
from slotgate.gateway.api.json_repair import parse_lenient, parse_object
from slotgate.gateway.api.large_chunk import LargeChunk
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.http.sse import EventParser, SseEvent, SseKind
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.fast_path import FastPath
from slotgate.gateway.streaming.template import Template

__all__ = ["Frames"]


class Frames:
    """The frames of one stream. Whole frames go to `out`; counts go to `token_usage`."""

    def __init__(
        self, dialect: Dialect, out: Downstream, token_usage: TokenUsage, clock: Callable[[], float]
    ) -> None:
        # The stream's end.
        self.sentinel = False
        """True once the stream has said that it succeeded. Nothing after that is read."""
        self.terminal = b""
        """The frame that reports the success. It is sent when the upstream's message is complete."""
        self.error: dict[str, Any] | None = None
        """The error object with which the stream ended. Nothing after it is read."""

        # Counts and times.
        self.parsed = 0
        """Events that came through the event parser. The first event of a stream always does."""
        self.last_event_at: float | None = None
        """The time of the last event that was timed. Events on the fast path are only counted."""
        self.first_output_at: float | None = None
        self._timed = 0
        """Deltas that were timed."""

        # The paths that an event can take.
        self.fast_path = FastPath(out, token_usage)
        self._dialect = dialect
        self._out = out
        self._token_usage = token_usage
        self._clock = clock
        self._parser = EventParser()
        self._large: LargeChunk | None = None
        """The chunk of a large event of which a part has been passed on."""
        self._templates: tuple[Template, ...] = ()
        """The templates learnt so far, one for each kind of delta; the last one that matched comes first."""
        self.learnable: tuple[bytes, bytes] | None = None
        """The data and event name of a plain delta that took the general path, from which a template can be
        learnt. Learning can wait until the frames of the read have been sent."""

    def __repr__(self) -> str:
        return f"<Frames {type(self._dialect).__name__} {self.parsed} events parsed, {self._token_usage!r}>"

    def feed(self, body: bytes) -> bool:
        """Read bytes of the body. Return True if they were one event that matched the expected template.

        Then only counts and times have changed. A plain delta that had to be parsed returns False.
        """
        template = self.fast_path.expected
        if template is not None:
            text = template.text_of_event(body)
            if text is not None:
                self.last_event_at = self._clock()
                self._delta(template, text)
                return True
        self._read(self._parser.feed(body))
        self._expect_next()
        return False

    def learn(self) -> None:
        """Learn a template, so that deltas that differ only in their text take the fast path from now on."""
        if self.learnable is not None:
            payload, name = self.learnable
            self.learnable = None
            chunk = parse_object(payload)
            template = Template.learn(payload, chunk, self._dialect, name) if chunk is not None else None
            if template is not None:
                others = (known for known in self._templates if known.kind != template.kind)
                self._templates = (template, *others)
                self._expect_next()

    def finish(self) -> None:
        """Read the end of the body. The last event counts even without its blank line, if it is whole."""
        self._read([event for event in self._parser.finish() if self._is_whole(event)])
        if self.error is None:
            self._put(self._dialect.flush())

    def keepalive(self) -> bytes:
        """Return what to send now to keep the connection alive; empty if nothing may be sent."""
        form = self._dialect.options.keepalive
        if form == "off" or self._large is not None:
            return b""
        if form == "comment":
            return self._dialect.heartbeat
        return self._dialect.keepalive_chunk(begun=self.first_output_at is not None)

    def failure(self, error: GatewayError) -> bytes:
        """Return the last frame of a stream that failed. A large event that is cut off is ended before."""
        return (b"\n\n" if self._large is not None else b"") + self._dialect.failure(error)

    @property
    def untimed(self) -> int:
        """The number of deltas that took the fast path."""
        return self._token_usage.deltas - self._timed

    # -- events

    def _expect_next(self) -> None:
        templates = self._templates
        aligned = not self._parser.pending and not self.sentinel and self.error is None
        expected = self.fast_path.expected = templates[0] if aligned and templates else None
        if expected is not None and expected.reasoning is not self._token_usage.in_reasoning:
            self._token_usage.next_deltas(reasoning=expected.reasoning)

    def _read(self, events: list[SseEvent]) -> None:
        for event in events:
            if self.sentinel or self.error is not None:
                return
            if event.kind is SseKind.COMMENT:
                self._comment(event.data)
                continue
            self.parsed += 1
            self.last_event_at = self._clock()
            if event.kind is SseKind.ERROR_FIELD or event.name == b"error":
                said = parse_lenient(event.data) or {"message": event.data.decode(errors="replace")}
                error = said.get("error") or said
                self.error = error if isinstance(error, dict) else {"message": str(error)}
            elif event.kind is SseKind.MESSAGE:
                self._message(event.data, event.name)
            else:
                self._piece(event)

    def _comment(self, text: bytes) -> None:
        """Pass on a comment of the upstream between events. It does not commit the response."""
        passes = self._dialect.options.keepalive == "comment"
        if passes and self._out.committed and self._large is None:
            self._out.put(b": %s\n\n" % text if text else b":\n\n")

    def _message(self, payload: bytes, name: bytes) -> None:
        if payload == self._dialect.done:
            self.sentinel = True
            self.terminal = b"data: %b\n\n" % payload
            return
        for template in self._templates:
            text = template.text_of(payload)
            if text is not None:
                if template is not self._templates[0]:
                    others = (other for other in self._templates if other is not template)
                    self._templates = (template, *others)
                self._token_usage.next_deltas(reasoning=template.reasoning)
                self._delta(template, text)
                return
        chunk = parse_object(payload)
        if chunk is None and payload != b"null":  # an answer to an array of prompts begins with `null`
            chunk = parse_lenient(payload)
            if chunk is None:
                self._pass_on(payload)
        if chunk is not None:
            self.error = self._dialect.error_in(chunk)
            if self.error is None:
                self._chunk(payload, name, chunk)

    def _pass_on(self, payload: bytes) -> None:
        """Pass on data that is not a JSON object as the text that it is."""
        text = payload.decode(errors="replace").encode()
        self._out.put(b"data: " + text.replace(b"\n", b"\ndata: ") + b"\n\n")

    def _chunk(self, payload: bytes, name: bytes, chunk: Chunk) -> None:
        dialect = self._dialect
        self._token_usage.read(chunk)
        self._output(chunk)
        if dialect.uses_templates() and dialect.plain(chunk) is not None:
            self.learnable = payload, name
        if dialect.ends(chunk):
            self.sentinel = True
            self.terminal = b"".join(map(dialect.frame, dialect.take(chunk)))
        else:
            self._put(dialect.take(chunk))

    def _output(self, chunk: Chunk) -> None:
        """Count the output of a chunk, if it has some."""
        if self._dialect.has_output(chunk):
            self._token_usage.next_deltas(reasoning=self._dialect.is_reasoning(chunk))
            self._count()
            if self.first_output_at is None:
                self.first_output_at = self._clock()

    def _piece(self, event: SseEvent) -> None:
        """Pass on a piece of a large event. Its last one tells what the event was."""
        large = self._large
        if large is None and event.kind is SseKind.LAST:
            return  # it had no data
        if large is None:
            large = self._large = LargeChunk(self._dialect.identity_members())
            self._out.put(self._dialect.beginning(event.name))
        if event.kind is SseKind.PIECE:
            if passing := large.feed(event.data):
                self._out.put(passing.replace(b"\n", b"\ndata: "))
            return
        chunk = large.finish()
        if chunk is not None:
            self._token_usage.read(chunk)
            self.error = self._dialect.error_in(chunk)
            self._output(chunk)
            if self._dialect.ends(chunk):
                self.sentinel, self.terminal = True, b"\n\n"  # the client reads the event at its blank line
                return
        self._large = None
        self._out.put(b"\n\n")

    def _delta(self, template: Template, text: bytes) -> None:
        self._count()
        self._out.delta(template, text)

    def _count(self) -> None:
        self._token_usage.deltas += 1
        self._timed += 1

    def _put(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._out.put(self._dialect.frame(chunk))

    def _is_whole(self, event: SseEvent) -> bool:
        """Return True if an event without its blank line was not cut off on the way."""
        if event.kind is SseKind.COMMENT:
            return True
        return event.data == self._dialect.done or parse_object(event.data) is not None
