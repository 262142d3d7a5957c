"""All client connections of one listener: their limits, and the wait for the last one to close.

    limits kept, or one can be closed in its place --> SERVED
    reserve not full, or one of it can be closed ----> RESERVED: health checks and operators, 503 for others
    else --------------------------------------------> DROPPED

There is a limit for all connections, and one for those of one address. At a limit, the new connection takes
the place of one that has no request yet: idle, or in the middle of a head. Of all addresses, it is one of the
address with most of these; of that address, the one that has waited longest. So whoever opens connections and
does not use them loses them first. The reserve lets health checks and operators in while all are in use.
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
"""The reserve: connections that may be open beyond the limit."""


class RegisteredConnection(Protocol):
    """A client connection, as far as the registry needs to know it."""

    transport: asyncio.Transport

    @property
    def address(self) -> str:
        """The address of the client; empty if the transport has none."""

    def shutdown(self) -> None:
        """Close now if idle, else after the answers that are under way."""

    def evict(self) -> bool:
        """Close now and return True, or return False if a request is being answered."""


class Admittance(Enum):
    """The registry's decision about a new connection."""

    SERVED = "served"
    RESERVED = "reserved"
    """Only for the paths of the reserve."""
    DROPPED = "dropped"


class ConnectionRegistry(ServerState):
    """uvicorn's state of a server, with limits and draining. Belongs to the running event loop."""

    def __init__(self, settings: ServerSettings, reserve_for: tuple[bytes, ...] = ()) -> None:
        """`reserve_for` are the paths, and beginnings of paths, that the reserve serves."""
        super().__init__()
        self.settings = settings
        self.draining = False
        """True once every answer is the last one of its connection."""
        self._reserve_for = reserve_for
        self._unused: dict[str, dict[RegisteredConnection, None]] = {}
        """Address -> its connections without a request, in the order in which they began to wait."""
        self._by_address: Counter[str] = Counter()
        """Address -> its open connections."""
        self._reserve: dict[RegisteredConnection, None] = {}
        """The connections of the reserve, in the order in which they came."""
        self.refused: Counter[str] = Counter()
        """Error code -> number of requests that were answered without the application."""
        self._line_budget = LogLimiter()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<ConnectionRegistry {state}, {len(self.connections)}, {self.unused} unused>"

    @property
    def unused(self) -> int:
        """The number of connections without a request."""
        return sum(map(len, self._unused.values()))

    def opened(self, connection: RegisteredConnection) -> Admittance:
        """Decide about a connection that was just added to `connections`. May close another one for it."""
        self._none_left.clear()
        address = connection.address
        self._by_address[address] += 1
        limit = self.settings.max_connections_per_address
        crowded = bool(limit and address) and self._by_address[address] > limit
        full = len(self.connections) - len(self._reserve) > self.settings.max_connections
        if not crowded and not full:
            return Admittance.SERVED
        if self._evict(address if crowded else self._most_unused()):
            return Admittance.SERVED
        if len(self._reserve) >= SPARE and not self._evict_of_reserve():
            return Admittance.DROPPED
        self._reserve[connection] = None
        return Admittance.RESERVED

    def closed(self, connection: RegisteredConnection) -> None:
        """Note that a connection was lost and is no longer in `connections`."""
        self._reserve.pop(connection, None)
        address = connection.address
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not self.connections:
            self._none_left.set()

    def waits(self, connection: RegisteredConnection) -> None:
        """Note that a connection waits for a request. One of the reserve keeps its own place."""
        if connection not in self._reserve:
            self._unused.setdefault(connection.address, {})[connection] = None

    def used(self, connection: RegisteredConnection) -> None:
        """Note that a connection does not wait for a request, or no longer."""
        waiting = self._unused.get(connection.address)
        if waiting is not None and connection in waiting:
            del waiting[connection]
            if not waiting:
                del self._unused[connection.address]

    def is_reserved_for(self, path: bytes) -> bool:
        """Return True if the reserve serves this path."""
        return any(path == known or path.startswith(known + b"/") for known in self._reserve_for)

    def _most_unused(self) -> str | None:
        """Return the address with most connections without a request, or None if there is none."""
        return max(self._unused, key=lambda address: len(self._unused[address]), default=None)

    def _evict(self, address: str | None) -> bool:
        """Close the connection of this address that waits longest. Return False if none waits."""
        waiting = self._unused.get(address) if address is not None else None
        if not waiting:
            return False
        oldest = next(iter(waiting))
        self.used(oldest)
        return oldest.evict()

    def _evict_of_reserve(self) -> bool:
        """Close one connection of the reserve that serves no request. Return False if there is none.

        It leaves the reserve at once, because it makes room for one other connection only.
        """
        for member in self._reserve:
            if member.evict():
                self._reserve.pop(member, None)
                return True
        return False

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
