"""The source of snapshots: `/admin/events` if the gateway serves it, else polls once a second.

A refusal ends the view. A connection that is lost after the first snapshot is made again until it succeeds,
so the view survives a restart of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from slotgate.gateway.http.sse import EventParser, SseKind
from slotgate.gateway.tools.top.snapshot import NotSlotgateError, Snapshot, of_event, of_poll

__all__ = ["ConnectionLost", "Feed", "RefusedError", "UnreachableError"]

PERIOD_S = 1.0
CONNECT_S = 5.0
SILENCE_S = 10.0
"""Events come twice a second. After this time without one, the connection counts as lost."""
_TOO_MANY = 429


class RefusedError(Exception):
    """The gateway refuses the view to this key. The text is the reason."""


class UnreachableError(Exception):
    """The gateway does not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Yielded when the connection is lost. The feed connects again."""

    reason: str


class Feed:
    """The snapshots of one gateway, for use as `async with Feed(url, key) as feed:`."""

    def __init__(self, url: str, key: str) -> None:
        try:
            parsed = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise RefusedError(f"{url} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise RefusedError(f"{url} is not the URL of a gateway (http://host:port)")
        self.url = str(parsed)
        self._client = httpx.AsyncClient(
            base_url=parsed,
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            trust_env=not _is_loopback(parsed.host),  # a proxy does not reach this machine
        )

    def __repr__(self) -> str:
        return f"<Feed of {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def once(self) -> Snapshot:
        """Return the first snapshot. Raises `RefusedError` and `UnreachableError`."""
        async with aclosing(self._from_gateway()) as snapshots:
            async for snapshot in snapshots:
                return snapshot
        raise UnreachableError(f"{self.url} ended its answer without sending anything")

    async def live(self) -> AsyncGenerator[Snapshot | ConnectionLost, None]:
        """Yield snapshots for ever. Raises `RefusedError`, and `UnreachableError` before the first."""
        seen = False
        while True:
            try:
                async with aclosing(self._from_gateway()) as snapshots:
                    async for snapshot in snapshots:
                        seen = True
                        yield snapshot
                reason = "the gateway ended the connection"
            except UnreachableError as error:
                if not seen:
                    raise
                reason = str(error)
            yield ConnectionLost(reason)
            await asyncio.sleep(PERIOD_S)

    async def _from_gateway(self) -> AsyncGenerator[Snapshot, None]:
        """Yield snapshots until the connection ends. Raises `RefusedError` and `UnreachableError`."""
        try:
            async with self._client.stream("GET", "/admin/events") as response:
                if response.status_code == 200:
                    async for snapshot in _events(response):
                        yield snapshot
                    return
                if response.status_code not in (404, _TOO_MANY):
                    self._refuse(response.status_code)
            while True:
                yield of_poll(await self._get("/admin/status"), await self._get("/admin/requests"))
                await asyncio.sleep(PERIOD_S)
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise UnreachableError(f"{self.url} cannot be reached: {said}") from error
        except (orjson.JSONDecodeError, NotSlotgateError) as error:
            raise RefusedError(f"{self.url} does not answer as slotgate does") from error

    async def _get(self, path: str) -> dict[str, Any]:
        answer = await self._client.get(path)
        if answer.status_code != 200:
            self._refuse(answer.status_code)
        content = orjson.loads(answer.content)
        if not isinstance(content, dict):
            raise NotSlotgateError("no object")
        return content

    def _refuse(self, status: int) -> None:
        if status in (401, 403):
            raise RefusedError(f"{self.url} does not know this operator key ({status})")
        if status == 404:
            why = "no operator key is configured there, or it is not slotgate"
            raise RefusedError(f"{self.url} has no /admin (404): {why}")
        raise UnreachableError(f"{self.url} answered {status}")


async def _events(response: httpx.Response) -> AsyncIterator[Snapshot]:
    parser = EventParser()
    snapshot: Snapshot | None = None
    async for data in response.aiter_bytes():
        for event in parser.feed(data):
            if event.kind is SseKind.MESSAGE:
                snapshot = of_event(orjson.loads(event.data), snapshot)
                yield snapshot


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
