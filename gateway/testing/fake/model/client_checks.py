"""When llama-server looks at its clients: only after a while without any result in the whole server.

A request that waits for its next result wakes up when there was none, for anybody, for `quiet_s`; only then
does it notice that its client has left, and only then may it ping. Tokens of other streams and answers to
`/slots` and `/metrics` are results; so asking too often keeps abandoned work alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Abandoned", "Attention"]

Result = TypeVar("Result")


class Abandoned(Exception):
    """The client of this work is gone, and the server has noticed."""


class Attention:
    """Belongs to the running event loop."""

    def __init__(self, quiet_s: float) -> None:
        self.quiet_s = quiet_s
        self._loop = asyncio.get_running_loop()
        self._last_result = self._loop.time()

    def result(self) -> None:
        """Somebody got something."""
        self._last_result = self._loop.time()

    async def wait(
        self,
        happening: asyncio.Future[Result],
        look: Callable[[], None],
        doom: asyncio.Future[None] | None = None,
    ) -> Result:
        """The result of `happening`; `look` is called whenever all has been quiet, and may raise.

        It has to raise once `doom` has come, and is called at once then.
        """
        began = self._loop.time()
        awaited: set[asyncio.Future[Any]] = {happening} if doom is None else {happening, doom}
        try:
            while not happening.done():
                quiet_at = max(self._last_result, began) + self.quiet_s
                if (now := self._loop.time()) >= quiet_at:
                    began = now
                    look()
                    continue
                await asyncio.wait(awaited, timeout=quiet_at - now, return_when=asyncio.FIRST_COMPLETED)
                if doom is not None and doom.done():
                    look()
            return happening.result()
        finally:
            happening.cancel()

    async def until(
        self, when: float, look: Callable[[], None], doom: asyncio.Future[None] | None = None
    ) -> None:
        """Return at that time of the loop's clock."""
        if when <= self._loop.time():
            await asyncio.sleep(0)
            return
        arrival: asyncio.Future[None] = self._loop.create_future()
        alarm = self._loop.call_at(when, _arrive, arrival)
        try:
            await self.wait(arrival, look, doom)
        finally:
            alarm.cancel()


def _arrive(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
