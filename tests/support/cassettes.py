"""Runs recorders and players in the running event loop, and reads their responses."""

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
    """A response on a connection of its own. It knows whether the message and the connection ended."""

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
        """Return the headers without those that every server makes itself."""
        assert self.head is not None
        return {name: value for name, value in self.head.headers if name not in (b"date", b"keep-alive")}


async def seen(url: str, request: bytes) -> SeenResponse:
    """Send a request and return the response, with the fact whether the server closes the connection."""
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

    A server that has not closed it within a moment may be slow, or may keep it open. An invalid request
    decides between the two: only an open connection answers it.
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
    """Run a recorder and yield its URL. All recordings are in the folder after the block."""
    async with Recorder(upstream, folder) as recorder, listening(recorder) as url:
        yield url


@asynccontextmanager
async def playing(folder: Path, speed: float = AT_ONCE) -> AsyncIterator[str]:
    async with listening(Player(Cassette.load(folder), speed=speed)) as url:
        yield url


def recordings(folder: Path) -> list[RecordedExchange]:
    """Return the recorded exchanges without those of status paths."""
    exchanges = Cassette.load(folder).exchanges
    return [exchange for exchange in exchanges if not exchange.name.startswith(STATUS)]
