"""Records one response and relays it to the client.

Reads are kept as they come, however slow the client is. Bytes that the client has not been sent yet are
bounded: beyond `MAX_BEHIND_BYTES` the upstream is paused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from starlette.types import Send

from slotgate.gateway.http.headers import Headers
from slotgate.gateway.testing.cassette.exchange import (
    Ending,
    RecordedExchange,
    RecordedRead,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.redaction import Redaction, is_secret_header
from slotgate.gateway.testing.cassette.request import RecordedRequest
from slotgate.gateway.upstream import End, UpstreamExchange

__all__ = ["HOP_BY_HOP", "MAX_KEPT_BYTES", "ResponseRecording"]

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Longer answers are relayed and not kept."""
MAX_BEHIND_BYTES = 8 * 1024 * 1024
"""The number of unsent bytes above which the upstream is paused."""
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"host",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class ResponseRecording:
    """The sink of one upstream response.

    Times count from its creation, just before the request is sent, because the answer may come at once.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.ending = Ending.ABANDONED
        self.closes = False
        self.over = asyncio.Event()
        self._began_at = time.monotonic()
        self._head_ms = 0.0
        self._end_ms: float | None = None
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        """The pieces of the current read."""
        self._reads: list[RecordedRead] = []
        self._kept_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._behind = 0
        self._news = asyncio.Event()
        self._upstream: UpstreamExchange | None = None

    def __repr__(self) -> str:
        return f"<ResponseRecording {self.status}, {len(self._reads)} reads, {self.ending.value}>"

    @property
    def has_something(self) -> bool:
        """True if there is an answer to keep, or the fact that the connection ended without one."""
        return self.status is not None or self.over.is_set()

    @property
    def too_long(self) -> bool:
        return self._kept_bytes > MAX_KEPT_BYTES

    # -- from the upstream

    def sent_on(self, exchange: UpstreamExchange) -> None:
        """Note the exchange on which the request was sent."""
        self._upstream = exchange

    def close(self) -> None:
        """Close the connection to the upstream, even in the middle of the response."""
        if self._upstream is not None:
            self._upstream.close()

    async def see_close(self, within: float) -> None:
        """Wait up to `within` seconds for the upstream to close the connection behind a complete stream."""
        stream = any(name == b"content-type" and b"event-stream" in value for name, value in self._headers)
        if stream and self.ending is Ending.COMPLETE and self._upstream is not None and not self.closes:
            await asyncio.wait([self._upstream.closed], timeout=within)
            self.closes = self._upstream.closed.done()

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        self._headers = headers
        self._head_ms = self._ms()
        self.closes = any(map(_says_close, headers))
        self._news.set()

    def body(self, data: bytes) -> None:
        self._pieces.append(data)

    def read_over(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces = []
            self._kept_bytes += len(data)
            if not self.too_long:
                self._reads.append(RecordedRead(self._ms(), data))
            self._unsent.append(data)
            self._behind += len(data)
            if self._behind > MAX_BEHIND_BYTES and self._upstream is not None:
                self._upstream.pause()
        self._news.set()

    def ended(self, end: End) -> None:
        if end is End.CLOSED:  # by the recorder, because the client has left
            return
        self.read_over()  # which is not called for the read that brings the end
        delimited = any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)
        close_delimited = end is End.CUT_SHORT and self.status is not None and not delimited
        self.ending = Ending.COMPLETE if end is End.COMPLETE or close_delimited else Ending.CUT_SHORT
        self.closes = self.closes or end is not End.COMPLETE
        self._end_ms = self._ms()
        self.over.set()
        self._news.set()

    # -- to the client

    async def relay(self, send: Send) -> None:
        """Relay until the response has ended. A response that was cut short gets no end."""
        await self._until(lambda: self.status is not None)
        if self.status is None:
            return
        headers = [pair for pair in self._headers if pair[0] not in HOP_BY_HOP or _says_close(pair)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        while True:
            await self._until(lambda: bool(self._unsent))
            if not self._unsent:
                break
            piece = self._unsent.popleft()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            self._behind -= len(piece)
            if self._behind <= MAX_BEHIND_BYTES // 2 and self._upstream is not None:
                self._upstream.resume()
        if self.ending is Ending.COMPLETE:
            await send({"type": "http.response.body", "body": b""})

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds or the response is over."""
        while not condition() and not self.over.is_set():
            self._news.clear()
            await self._news.wait()

    # -- the recorded exchange

    def exchange(self, request: RecordedRequest, redaction: Redaction) -> RecordedExchange:
        masked = redaction.reads([read.data for read in self._reads])
        response = RecordedResponse(
            status=self.status,
            head_ms=self._head_ms,
            headers=tuple(_kept_headers(self._headers, redaction)),
            reads=tuple(RecordedRead(read.ms, data) for read, data in zip(self._reads, masked, strict=True)),
            ending=self.ending,
            end_ms=self._ms() if self._end_ms is None else self._end_ms,
            closes=self.closes,
        )
        return RecordedExchange(request, response)

    def _ms(self) -> float:
        """Return milliseconds since the start, by a finer clock than uvloop's, which counts whole ones."""
        return round((time.monotonic() - self._began_at) * 1000, 1)


def _kept_headers(headers: Headers, redaction: Redaction) -> Iterable[tuple[str, str]]:
    for name, value in headers:
        text = name.decode("latin-1")
        kept = name not in HOP_BY_HOP or _says_close((name, value))
        if kept and name != b"date" and not is_secret_header(text):
            yield text, redaction.text(value.decode("latin-1"))


def _says_close(header: tuple[bytes, bytes]) -> bool:
    return header[0] == b"connection" and header[1].lower() == b"close"
