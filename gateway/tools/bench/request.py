"""A streaming chat request, timed as its client sees it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import orjson

from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.sse import EventParser
from slotgate.gateway.upstream import End

__all__ = ["BenchRequest"]

_queued = re.compile(rb"queue;dur=([0-9.]+)").search
_MOST_ANSWER = 64 * 1024


class BenchRequest:
    """The sink of one exchange. Times are of `time.monotonic`, in seconds."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.over = asyncio.Event()
        self.status = 0
        self.queue_ms: float | None = None
        """The time in the queue, as the gateway states it in `server-timing`."""
        self.first_text_at: float | None = None
        self.ended_at = 0.0
        self.gaps: list[float] = []
        """Seconds between each event with text and the next one."""
        self.failure = ""
        """The error code, or the way in which the connection ended. Empty for a success."""
        self._last_text_at = 0.0
        self._events = EventParser()
        self._answer = bytearray()
        self._token_usage = TokenUsage()
        self._done = False

    def __repr__(self) -> str:
        return f"<BenchRequest {self.status} {self.failure or 'ok'} {self.tokens} tokens>"

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the stated number, else the number of pieces of text."""
        return self._token_usage.completed

    @property
    def ok(self) -> bool:
        return self._done and not self.failure

    @property
    def total_s(self) -> float:
        return self.ended_at - self.began_at

    @property
    def first_text_s(self) -> float | None:
        return None if self.first_text_at is None else self.first_text_at - self.began_at

    def fail(self, failure: str) -> None:
        """End the request as failed."""
        self.failure = failure
        self._end()

    # -- the sink

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        timing = _queued(dict(headers).get(b"server-timing", b""))
        self.queue_ms = float(timing[1]) if timing else None

    def body(self, data: bytes) -> None:
        if self.status != 200:
            self._answer += data[: _MOST_ANSWER - len(self._answer)]
            return
        for event in self._events.feed(data):
            if event.data == b"[DONE]":
                self._done = True
            elif event.data.startswith(b"{"):
                self._chunk(orjson.loads(event.data))

    def read_over(self) -> None:
        """Do nothing: `body` has read the bytes already."""

    def ended(self, end: End) -> None:
        if self.status != 200:
            self.failure = self.failure or _code_of(bytes(self._answer)) or f"status {self.status}"
        elif not self._done:
            self.failure = self.failure or f"stream {end.value}"
        self._end()

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.failure = _code_of(orjson.dumps(chunk)) or "error in the stream"
            return
        self._token_usage.read(chunk)
        if any(_says(choice) for choice in chunk.get("choices") or ()):
            self._text()

    def _text(self) -> None:
        now = time.monotonic()
        self._token_usage.deltas += 1
        if self.first_text_at is None:
            self.first_text_at = now
        else:
            self.gaps.append(now - self._last_text_at)
        self._last_text_at = now

    def _end(self) -> None:
        self.ended_at = time.monotonic()
        self.over.set()


def _says(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


def _code_of(answer: bytes) -> str:
    """Return the code of an error body, or an empty text."""
    try:
        error = orjson.loads(answer)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ""
