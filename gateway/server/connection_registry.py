"""All client connections of one server: how many there may be, which are idle, when the last one is gone.

A connection that is idle (no byte of a request has come) can be closed for a new one, the one that has been
idle longest first. When none is idle a new one is refused with an answer; past `SPARE` of those, without.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from enum import Enum
from typing import Protocol, cast

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.settings import ServerSettings
from slotgate.gateway.telemetry.log_limiter import LogLimiter

__all__ = ["Admittance", "ConnectionRegistry", "RegisteredConnection"]

log = structlog.stdlib.get_logger(__name__)
SPARE = 64
"""Connections that may be open beyond the limit, so that each can be told that there are too many."""


class RegisteredConnection(Protocol):
    """A client connection, as far as the registry needs to know it."""

    transport: asyncio.Transport

    def shutdown(self) -> None:
        """Close now if idle, else after the answers that are under way."""


class Admittance(Enum):
    """The registry's decision about a new connection."""

    SERVED = "served"
    REFUSED = "refused"
    DROPPED = "dropped"


class ConnectionRegistry(ServerState):
    """uvicorn's state of a server, and what it lacks. Belongs to the running event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.draining = False
        """Every answer is the last one of its connection."""
        self.idle: dict[RegisteredConnection, None] = {}
        """In the order in which they became idle."""
        self.refused: Counter[str] = Counter()
        """Answers given without the application, by error code."""
        self._line_budget = LogLimiter()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<ConnectionRegistry {state}, {len(self.connections)}, {len(self.idle)} idle>"

    def opened(self) -> Admittance:
        """A connection was made and is in `connections`. Makes room for it by closing an idle one."""
        self._none_left.clear()
        over = len(self.connections) - self.settings.max_connections
        if over <= 0:
            return Admittance.SERVED
        oldest = next(iter(self.idle), None)
        if oldest is not None:
            oldest.shutdown()
            return Admittance.SERVED
        return Admittance.REFUSED if over <= SPARE else Admittance.DROPPED

    def closed(self) -> None:
        """A connection was lost and is no longer in `connections`."""
        if not self.connections:
            self._none_left.set()

    def refusal(self, error: GatewayError, client: tuple[str, int] | None) -> bytes:
        """The response to what the application is not to see; the last one of its connection."""
        self.refused[error.code] += 1
        request_id = secrets.token_hex(16)
        address = client[0] if client else None
        if self._line_budget.allows(error.code):
            log.info("refused", id=request_id, client=address, status=error.status, code=error.code)
        body = error.body()
        headers = [
            *self.default_headers,
            (b"content-type", b"application/json"),
            *error.headers(),
            (b"x-request-id", request_id.encode()),
            (b"server-timing", b"queue;dur=0.0"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])

    def drain(self) -> None:
        """Close what is idle now, and every other connection after the answers that it is owed."""
        self.draining = True
        for connection in self._all():
            connection.shutdown()

    async def gone(self, within: float) -> bool:
        """Wait until there is no connection, at most so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Close all of them, unsent bytes and all."""
        for connection in self._all():
            connection.transport.abort()
        self._line_budget.flush()

    def _all(self) -> list[RegisteredConnection]:
        return cast("list[RegisteredConnection]", list(self.connections))
