"""A gateway with its listener, scripted backends and clients in one event loop, on virtual time.

No socket is used: the connections are those of `VirtualTimeLoop`. Waiting takes no time, so timeouts have the
lengths that they have in production, and every figure is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

from slotgate.gateway.app.application import RESERVED_PATHS
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.app.serve import assemble
from slotgate.gateway.server.listener import Listener
from slotgate.gateway.settings import Settings
from slotgate.gateway.usage import UsageLedger, UsageRecord, UsageRecorder
from tests.support.client import RawClient
from tests.support.scripted import ScriptedUpstream

__all__ = ["KeptRecords", "VirtualGateway", "VirtualUpstream", "virtual_gateway"]

STEP_S = 0.05
"""Virtual seconds between two looks at a condition."""


class VirtualUpstream(ScriptedUpstream):
    """A scripted upstream in memory."""

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]


class KeptRecords:
    """The part of a `UsageRecorder` that requests use. It keeps the records."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []

    def put(self, record: UsageRecord) -> None:
        self.records.append(record)


class VirtualGateway:
    def __init__(self, server: Listener, parts: Composition, kept: KeptRecords) -> None:
        self.server = server
        self.parts = parts
        self.records = kept.records
        """The usage records, in the order in which the requests ended."""

    def __repr__(self) -> str:
        return f"<VirtualGateway {self.server!r}>"

    async def client(self) -> RawClient:
        address = urlsplit(self.server.url)
        return RawClient(*await asyncio.open_connection(address.hostname, address.port))

    async def until(self, condition: Callable[[], object], within: float = 600.0) -> None:
        """Wait until the condition holds. The limit is in virtual seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not condition():
            assert loop.time() < end, f"not within {within} s: {self.parts!r}"
            await asyncio.sleep(STEP_S)

    async def until_idle(self) -> None:
        """Wait until no request is in flight and no slot is in quarantine."""
        runtime = self.parts.runtime
        pools = [backend.pool for backend in runtime.fleet.backends.values()]
        await self.until(lambda: not runtime.in_flight.contexts)
        await self.until(lambda: not any(pool.quarantine.slots for pool in pools))


@asynccontextmanager
async def virtual_gateway(settings: Settings) -> AsyncIterator[VirtualGateway]:
    kept = KeptRecords()
    usage = UsageLedger(None, cast("UsageRecorder", kept))
    async with assemble(settings, {}, usage) as (app, parts):
        server = Listener(app, settings.server, reserve_for=RESERVED_PATHS)
        await server.listen()
        gateway = VirtualGateway(server, parts, kept)
        await gateway.until(lambda: parts.runtime.fleet.ready)
        try:
            yield gateway
        finally:
            server.close()
            await asyncio.sleep(0)
