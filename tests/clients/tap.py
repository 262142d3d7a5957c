"""A wire between a client and the gateway on which the test sees what passes to the client.

Clients hide keep-alives from their users; here they can be counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.support.gateway import CHAT

PINGS = (b": keep-alive\n\n", b"event: ping\n")
"""Keep-alives that are no chunks."""
_CHUNKS = {
    CHAT: b'"delta":{},"finish_reason":null',
    "/v1/completions": b'"text":"","logprobs":null,"finish_reason":null',
}


def look_of_keepalives(path: str, form: str) -> bytes:
    """What is in each of them, and in nothing else on this endpoint."""
    if path == "/v1/messages":
        return PINGS[1]
    return _CHUNKS.get(path, PINGS[0]) if form == "chunk" else PINGS[0]


class Tap:
    def __init__(self) -> None:
        self.url = ""
        self.seen = bytearray()
        """Everything that the gateway sent, on all connections."""
        self.on_seen: Callable[[bytearray], None] = lambda _: None

    async def carry(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to the end of both halves."""
        parts = urlsplit(url)
        there, onward = await asyncio.open_connection(parts.hostname, parts.port)
        forth = asyncio.create_task(_pass(reader, onward))
        try:
            while data := await there.read(65536):
                self.seen += data
                self.on_seen(self.seen)
                writer.write(data)
        finally:
            forth.cancel()
            with suppress(asyncio.CancelledError):
                await forth
            writer.close()
            onward.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def tapped(url: str) -> AsyncIterator[Tap]:
    """`tap.url` leads to `url`."""
    tap, running = Tap(), set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(tap.carry(url, reader, writer))
        running.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
