"""All client connections of one listener: their limit, the idle ones, and the wait for the last one to close.

At the limit, a new connection takes the place of the connection that has been idle longest (idle: no byte of
a request has come). If none is idle, the new connection is refused with an answer. If `SPARE` more than the
limit are open, it is closed without one.
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
    """uvicorn's state of a server, with limits and draining. Belongs to the running event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.draining = False
        """True once every answer is the last one of its connection."""
        self.idle: dict[RegisteredConnection, None] = {}
        """The idle connections, in the order in which they became idle."""
        self.refused: Counter[str] = Counter()
        """Error code -> number of requests that were answered without the application."""
        self._line_budget = LogLimiter()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<ConnectionRegistry {state}, {len(self.connections)}, {len(self.idle)} idle>"

    def opened(self) -> Admittance:
        """Decide about a connection that was just added to `connections`. May close an idle one for it."""
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
        """Note that a connection was lost and is no longer in `connections`."""
        if not self.connections:
            self._none_left.set()

    def refusal(self, error: GatewayError, client: tuple[str, int] | None) -> bytes:
        """Return the response to a request that the application must not see. It closes the connection."""
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
        """Close the idle connections now, and every other one after the answers that are under way."""
        self.draining = True
        for connection in self._all():
            connection.shutdown()

    async def gone(self, within: float) -> bool:
        """Wait at most this many seconds until no connection is open. Return False if one still is."""
        try:
            async with asyncio.timeout(within):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Close all connections at once. Unsent bytes are lost."""
        for connection in self._all():
            connection.transport.abort()
        self._line_budget.flush()

    def _all(self) -> list[RegisteredConnection]:
        return cast("list[RegisteredConnection]", list(self.connections))
