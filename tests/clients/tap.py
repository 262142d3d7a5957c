"""A proxy between a client and the gateway that keeps the bytes for the client.

Clients hide keep-alives from their users. Here tests can count them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.support.gateway import CHAT

PINGS = (b": keep-alive\n\n", b"event: ping\n")
"""The keep-alives of protocols without empty chunks."""
_CHUNKS = {
    CHAT: b'"delta":{},"finish_reason":null',
    "/v1/completions": b'"text":"","logprobs":null,"finish_reason":null',
}


def look_of_keepalives(path: str, form: str) -> bytes:
    """Bytes that are in each keep-alive of the endpoint, and nowhere else."""
    if path == "/v1/messages":
        return PINGS[1]
    return _CHUNKS.get(path, PINGS[0]) if form == "chunk" else PINGS[0]


class Tap:
    def __init__(self) -> None:
        self.url = ""
        self.seen = bytearray()
        """The bytes that the gateway sent on all connections."""
        self.on_seen: Callable[[bytearray], None] = lambda _: None

    async def carry(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until both halves have ended."""
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
    """Run a proxy. `tap.url` leads to `url`."""
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
