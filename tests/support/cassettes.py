"""Recording and playing in the running loop, and what a client sees of either on one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from slotgate.gateway.testing.cassette import AT_ONCE, Cassette, Player, RecordedExchange, Recorder, listening
from tests.support.client import RawClient, request_bytes
from tests.support.http1 import Head

MOMENT_S = 0.02
STATUS = ("get-health", "get-props", "get-slots", "get-v1-models")


@dataclass(frozen=True, slots=True)
class SeenResponse:
    """A response on a connection of its own, and whether its message and its connection ended."""

    head: Head | None
    body: bytes
    clean_end: bool
    closed: bool

    @property
    def status(self) -> int:
        assert self.head is not None
        return int(self.head.start_line.split()[1])

    @property
    def told(self) -> dict[bytes, bytes]:
        """Headers but for those that a server makes anew."""
        assert self.head is not None
        return {name: value for name, value in self.head.headers if name not in (b"date", b"keep-alive")}


async def seen(url: str, request: bytes) -> SeenResponse:
    """Send a request and return what comes back, and whether the server then closes the connection."""
    async with await RawClient.connect(url) as client:
        await client.send(request)
        try:
            head = await client.head()
        except ConnectionError:
            return SeenResponse(None, b"", clean_end=False, closed=True)
        body = await client.body()
        clean = client.clean_end is True
        return SeenResponse(head, body, clean, closed=not clean or await closes(client))


async def closes(client: RawClient) -> bool:
    """Return True if the server closes the connection after a whole response.

    A server that has not done so within a moment may be slow, or may keep the connection open. Bytes that are
    no request tell which of the two: only a connection that is open has an answer to them.
    """
    try:
        return await client.eof(MOMENT_S)
    except TimeoutError:
        pass
    try:
        await client.send(b"no request\r\n\r\n")
        await client.head()
    except ConnectionError:
        return True
    return False


async def posted(url: str, path: str, json: object, *headers: bytes) -> SeenResponse:
    return await seen(url, request_bytes("POST", path, *headers, json=json))


@asynccontextmanager
async def recording(upstream: str, folder: Path) -> AsyncIterator[str]:
    """The URL of a recorder. All that was asked of it is in the folder when the block has been left."""
    async with Recorder(upstream, folder) as recorder, listening(recorder) as url:
        yield url


@asynccontextmanager
async def playing(folder: Path, speed: float = AT_ONCE) -> AsyncIterator[str]:
    async with listening(Player(Cassette.load(folder), speed=speed)) as url:
        yield url


def recordings(folder: Path) -> list[RecordedExchange]:
    """What was recorded, but for the status of the upstream."""
    exchanges = Cassette.load(folder).exchanges
    return [exchange for exchange in exchanges if not exchange.name.startswith(STATUS)]
