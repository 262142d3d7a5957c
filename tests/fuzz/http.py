"""Random and changed requests on the connections of a running gateway.

The limits of time are short, so that the gateway itself ends every connection, whatever came on it. A
connection that does not end hangs. A client may also leave in the middle of its answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

from slotgate.gateway.server import connection
from slotgate.gateway.upstream import transport
from tests.fuzz.mutations import edited
from tests.support.answer import fetch
from tests.support.gateway import Gateway, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.scripted import ScriptedUpstream

__all__ = ["Storm", "attacked"]

_AT_A_TIME = 120
_ENDS_WITHIN_S = 20.0
"""Far more than the limits of the gateway add up to, for a machine that does other work."""
_SHORT_S = 0.15
_LIMITS = dict.fromkeys(("header_timeout_s", "body_timeout_s", "keep_alive_s"), _SHORT_S)


class Storm:
    """Sends inputs to a gateway. `statuses` counts the answers."""

    def __init__(self, gateway: Gateway) -> None:
        self.statuses: Counter[int] = Counter()
        self.failures: dict[bytes, str] = {}
        """Input -> what went wrong."""
        self._gateway = gateway
        self._places = asyncio.Semaphore(_AT_A_TIME)

    async def send(self, inputs: Sequence[bytes], rng: random.Random) -> None:
        """Send each input, and check that the gateway is whole afterwards."""
        await asyncio.gather(
            *(self._one(data, rng.randrange(len(data) + 1), rng.random() < 0.25) for data in inputs)
        )
        assert (await fetch(self._gateway.url, "GET", "/health")).status == 200
        await self._gateway.until(lambda: self._gateway.idle)

    async def _one(self, data: bytes, cut: int, leaves: bool) -> None:
        async with self._places:
            try:
                async with asyncio.timeout(_ENDS_WITHIN_S):
                    got = await self._exchanged(data, cut, leaves)
            except TimeoutError:
                self.failures[data] = "the connection did not end"
                return
        if got:
            status = int(got[9:12]) if got.startswith(b"HTTP/1.") and got[9:12].isdigit() else 0
            self.statuses[status] += 1
            if status in (0, 500) or b"internal_error" in got:
                self.failures[data] = repr(got[:300])

    async def _exchanged(self, data: bytes, cut: int, leaves: bool) -> bytes:
        reader, writer = await asyncio.open_connection(*self._gateway.url.removeprefix("http://").split(":"))
        got = b""
        try:
            writer.write(data[:cut])
            await asyncio.sleep(0)
            writer.write(data[cut:])
            while piece := await reader.read(65536):
                got += piece
                if leaves:
                    break
        except ConnectionError:
            pass  # what was not read when the gateway closed
        finally:
            writer.transport.abort()
        return got


@asynccontextmanager
async def attacked() -> AsyncIterator[Storm]:
    """Run a gateway to send to. Leaving the block checks its books, its connections and its log."""
    server = {"port": 0, "expose_props": True, "expose_slots": True, "max_body_bytes": 100_000, **_LIMITS}
    lingers = patch.object(connection, "LINGER_S", _SHORT_S)
    idles = patch.object(transport, "IDLE_S", _SHORT_S)
    async with ScriptedUpstream(llama=LlamaLike(4, tokens=2)) as fu:
        async with running_gateway(settings_for(fu.url, server=server)) as gateway:
            with lingers, idles:
                yield Storm(gateway)


async def round_of(inputs: Sequence[bytes], number: int, seed: int) -> Storm:
    """Send `number` changed inputs to a new gateway. Raises an error if it is not whole afterwards."""
    rng = random.Random(seed)
    async with attacked() as storm:
        await storm.send([edited(rng, inputs) for _ in range(number)], rng)
    return storm
