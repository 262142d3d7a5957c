"""A synthetic upstream that costs next to nothing: `python -m bench.upstream PORT`.

The text of a request says what it gets. `pace=50 tokens=8` means eight tokens, one every 20 ms. `pace=0`
means as fast as the client reads. `tokens=0` means endless, until `POST /end` ends all streams normally.
Every token is one HTTP chunk and one write. The streams of one pace are spread evenly over its interval,
whenever each began (timers have a resolution of a millisecond). So tokens arrive one by one, which is the
most expensive case and the same for every gateway.

`/health`, `/props`, `/slots` and `/v1/models` answer as llama-server does.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import cast

import httptools
import uvloop

from bench.chunk import END, FINISH, ROLE, token

__all__ = ["SLOTS", "Streams", "serve"]

SLOTS = 1200
_GOLDEN = 0.6180339887
"""The golden ratio: steps of this size around a circle spread any number of points evenly."""
_wanted = re.compile(rb"pace=(\d+) tokens=(\d+)").search
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
)
_PLAIN = {
    b"/health": b'{"status":"ok"}',
    b"/props": b'{"total_slots":%d,"default_generation_settings":{"n_ctx":4096},"model_alias":"upstream"}'
    % SLOTS,
    b"/slots": b"[%b]" % b",".join(b'{"id":%d,"is_processing":false}' % slot for slot in range(SLOTS)),
    b"/v1/models": b'{"object":"list","data":[{"id":"upstream","object":"model","owned_by":"llamacpp"}]}',
}


class Streams:
    """All open streams, and the phase of the next one."""

    def __init__(self) -> None:
        self.open: set[Connection] = set()
        self._begun = 0

    def phase(self) -> float:
        """The point in the token interval at which the next stream starts, from 0 to 1."""
        self._begun += 1
        return self._begun * _GOLDEN % 1

    def end(self) -> None:
        for stream in list(self.open):
            stream.finish()


class Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, streams: Streams) -> None:
        self._loop = loop
        self._streams = streams
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body = b""
        self._left = 0
        self._interval_s = 0.0
        self._next_at = 0.0
        self._next: asyncio.Handle | None = None
        self._paused = False
        self._write: Callable[[bytes], None]

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self in self._streams.open and not self._interval_s:
            self._next = self._loop.call_soon(self._burst)

    # -- httptools

    def on_message_begin(self) -> None:
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path = httptools.parse_url(url).path

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        wanted = _wanted(self._body)
        if self._path == b"/end":
            self._streams.end()
            self._answer(200, b"{}")
        elif self._path.endswith(b"/chat/completions") and wanted:
            self._begin(int(wanted[1]), int(wanted[2]))
        else:
            self._answer(
                200 if self._path in _PLAIN else 404, _PLAIN.get(self._path, b'{"error":{"code":404}}')
            )

    # -- mechanism

    def _answer(self, status: int, content: bytes) -> None:
        head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % (status, len(content)) + content)

    def _begin(self, pace: int, tokens: int) -> None:
        self._left = tokens or sys.maxsize
        self._interval_s = 1 / pace if pace else 0.0
        self._streams.open.add(self)
        self._write(_STREAM_HEAD + ROLE)
        if pace:
            begun = self._loop.time() // self._interval_s
            self._next_at = (begun + 1 + self._streams.phase()) * self._interval_s
            self._next = self._loop.call_at(self._next_at, self._tick)
        else:
            self._burst()

    def _tick(self) -> None:
        """Write one token at its time, even if the last one was late."""
        if not self._paused:
            self._write(token(monotonic_ns()))
            self._left -= 1
        if not self._left:
            self.finish()
            return
        self._next_at += self._interval_s
        self._next = self._loop.call_at(self._next_at, self._tick)

    def _burst(self) -> None:
        """Write one token per iteration of the loop: two in one iteration would be sent in one write."""
        if self._paused or self not in self._streams.open:
            return
        self._write(token(monotonic_ns()))
        self._left -= 1
        if self._left:
            self._next = self._loop.call_soon(self._burst)
        else:
            self.finish()

    def finish(self) -> None:
        self._stop()
        self._write(FINISH)
        self._write(END)

    def _stop(self) -> None:
        self._streams.open.discard(self)
        if self._next is not None:
            self._next.cancel()
            self._next = None


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    streams = Streams()
    server = await loop.create_server(lambda: Connection(loop, streams), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
