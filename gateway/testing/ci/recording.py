"""A stand-in that plays a recording behind the gateway, in this process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from starlette.types import Receive, Scope, Send

from slotgate.gateway.http.context import headers_of
from slotgate.gateway.testing.cassette import Cassette, Player, RecordedRequest, listening

__all__ = ["RecordedServer"]

_SLOTS = 4
"""The number of slots if the recorded server did not state one."""


class RecordedServer:
    """A `StandIn`. Recorded failures are meant to fail. Requests without a recording are unmatched."""

    def __init__(self, folder: Path, speed: float) -> None:
        """Raises `CassetteError`."""
        self._cassette = Cassette.load(folder)
        self._player = Player(self._cassette, speed=speed)
        self._reached: set[str] = set()
        self._stack = AsyncExitStack()
        self._url = ""

    def __repr__(self) -> str:
        return f"<RecordedServer {self._player!r}>"

    async def __aenter__(self) -> Self:
        self._url = await self._stack.enter_async_context(listening(self._play))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def backend(self) -> dict[str, Any]:
        table: dict[str, Any] = {"name": "replay", "url": self._url}
        if not self._has("/props"):
            table["slots"] = _SLOTS
        if not self._has("/v1/models"):
            table["models"] = self._asked_models() or ["replay"]
        return table

    def meant_to_fail(self, request_id: str) -> bool:
        """Return True if the request reached the player, which answers as recorded."""
        return request_id in self._reached

    def unmatched(self) -> list[str]:
        return list(map(str, self._player.misses))

    async def _play(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._reached.add(headers_of(scope).get(b"x-request-id", b"").decode("latin-1"))
        await self._player(scope, receive, send)

    def _has(self, path: str) -> bool:
        return bool(self._cassette.of(RecordedRequest("GET", path)))

    def _asked_models(self) -> list[str]:
        bodies = (exchange.request.content.get("json") for exchange in self._cassette.exchanges)
        names = (body.get("model") for body in bodies if isinstance(body, dict))
        return sorted({name for name in names if isinstance(name, str)})
