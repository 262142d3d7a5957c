"""The hot path: bytes of one upstream stream in, frames for its client out.

    a read -> [one chunk, the template matches] ----------------------------> prefix + text + suffix, at once
           -> body bytes -> [template matches]  ----------------------------> prefix + text + suffix
                         -> events -> [template matches] -------------------> prefix + text + suffix
                                   -> parse -> usage -> dialect -> learn ---> dump

Nearly every read holds one plain text delta that differs from the last one in its text alone; it leaves by
the first line (`fast_path`), without a parser. Everything else is parsed once, and the protocol's dialect
says what leaves for it. Nothing here awaits, and nothing is decided about the request: the relay looks at
`sentinel` and `error` after each read that was more than one plain delta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects import Dialect
from slotgate.gateway.api.json_repair import parse_lenient, parse_object
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.http.sse import EventParser, SseEvent, SseKind
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.fast_path import FastPath
from slotgate.gateway.streaming.template import Template

__all__ = ["Frames"]


class Frames:
    """One stream. Whole frames go to `out`; counts go to `token_usage`."""

    def __init__(
        self, dialect: Dialect, out: Downstream, token_usage: TokenUsage, clock: Callable[[], float]
    ) -> None:
        self.sentinel = False
        """Whether the stream has said that it succeeded. Nothing after it is read."""
        self.terminal = b""
        """What says so to the client, once the upstream's message is complete."""
        self.error: dict[str, Any] | None = None
        """The error object that the stream ended with. Nothing after it is read."""
        self.parsed = 0
        """Events that came through the event parser. The first one does."""
        self.last_event_at: float | None = None
        """Of the events that were timed; what `fast_path` takes is only counted."""
        self.first_output_at: float | None = None
        self.unparsed = 0
        """Events whose data was not JSON as it stood."""
        self._dialect = dialect
        self._out = out
        self._token_usage = token_usage
        self._clock = clock
        self._parser = EventParser()
        self._next: Template | None = None
        """What the next read is likely to be, if it begins an event."""
        self._known: tuple[Template, ...] = ()
        self._fast_path: FastPath | None = None
        self._lesson: tuple[bytes, bytes] | None = None
        """Of the last plain delta that took the general path: its data, and the name of its event."""
        self._inside_raw = False
        self._timed = 0
        """Deltas that were."""

    def __repr__(self) -> str:
        return f"<Frames {type(self._dialect).__name__} {self.parsed} events parsed, {self._token_usage!r}>"

    def feed(self, body: bytes) -> bool:
        """True if it was one plain text delta: then nothing else about the stream has changed."""
        template = self._next
        if template is not None:
            text = template.text_of_event(body)
            if text is not None:
                self.last_event_at = self._clock()
                self._delta(template, text)
                return True
        self._read(self._parser.feed(body))
        self._foresee()
        return False

    @property
    def curious(self) -> bool:
        """Whether there is something to learn, which can wait until what was read has left."""
        return self._lesson is not None

    def learn(self) -> None:
        """Take the short way from now on for what differs from the last plain delta in its text alone."""
        if self._lesson is not None:
            payload, name = self._lesson
            self._lesson = None
            chunk = parse_object(payload)
            template = Template.learn(payload, chunk, self._dialect, name) if chunk is not None else None
            if template is not None:
                self._known = (template, *(known for known in self._known if known.kind != template.kind))
                self._foresee()

    def finish(self) -> None:
        """The body has ended. What stands without its blank line is read if it is whole."""
        self._read([event for event in self._parser.finish() if self._is_whole(event)])
        if self.error is None:
            self._put(self._dialect.flush())

    def keepalive(self) -> bytes:
        """What to send into a silence now; empty if nothing."""
        form = self._dialect.options.keepalive
        if form == "off" or self._inside_raw:
            return b""
        if form == "comment":
            return self._dialect.heartbeat
        return self._dialect.keepalive_chunk(begun=self.first_output_at is not None)

    def failure(self, error: GatewayError) -> bytes:
        """The last frame of a stream that failed; a raw event that was cut off is ended first."""
        return (b"\n\n" if self._inside_raw else b"") + self._dialect.failure(error)

    @property
    def fast_path(self) -> FastPath | None:
        """For the next read, if it is one whole chunk and what it is likely to be."""
        template, writer = self._next, self._out.writer
        if template is None or writer is None:
            return None
        if self._fast_path is None or self._fast_path.template is not template:
            self._fast_path = FastPath(template, writer, self._out, self._token_usage)
        return self._fast_path

    @property
    def untimed(self) -> int:
        """Deltas so far that `fast_path` took."""
        return self._token_usage.deltas - self._timed

    # -- events

    def _foresee(self) -> None:
        aligned = not self._parser.pending and not self.sentinel and self.error is None
        self._next = self._known[0] if aligned and self._known else None

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
                self._inside_raw = not event.data.endswith(b"\n\n")
                self._out.put(event.data)

    def _comment(self, text: bytes) -> None:
        """The upstream's own comments pass at event borders, but commit nothing."""
        passes = self._dialect.options.keepalive == "comment"
        if passes and self._out.committed and not self._inside_raw:
            self._out.put(b": %s\n\n" % text if text else b":\n\n")

    def _message(self, payload: bytes, name: bytes) -> None:
        if payload == self._dialect.done:
            self.sentinel = True
            self.terminal = b"data: %b\n\n" % payload
            return
        for template in self._known:
            text = template.text_of(payload)
            if text is not None:
                if template is not self._known[0]:
                    self._known = (template, *(other for other in self._known if other is not template))
                self._delta(template, text)
                return
        chunk = parse_object(payload)
        if chunk is None and payload != b"null":  # which an answer to an array of prompts begins with
            self.unparsed += 1
            chunk = parse_lenient(payload)
            if chunk is None:
                self._pass_on(payload)
        if chunk is not None:
            self.error = self._dialect.error_in(chunk)
            if self.error is None:
                self._chunk(payload, name, chunk)

    def _pass_on(self, payload: bytes) -> None:
        """What is no JSON object passes as the text that it is."""
        text = payload.decode(errors="replace").encode()
        self._out.put(b"data: " + text.replace(b"\n", b"\ndata: ") + b"\n\n")

    def _chunk(self, payload: bytes, name: bytes, chunk: Chunk) -> None:
        dialect = self._dialect
        self._token_usage.read(chunk)
        if dialect.has_output(chunk):
            self._count()
            if self.first_output_at is None:
                self.first_output_at = self._clock()
        if dialect.uses_templates() and dialect.plain(chunk) is not None:
            self._lesson = payload, name
        if dialect.ends(chunk):
            self.sentinel = True
            self.terminal = b"".join(map(dialect.frame, dialect.take(chunk)))
        else:
            self._put(dialect.take(chunk))

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
        """Whether an event without its blank line was not cut off on the way."""
        if event.kind in (SseKind.COMMENT, SseKind.RAW):
            return True
        return event.data == self._dialect.done or parse_object(event.data) is not None
