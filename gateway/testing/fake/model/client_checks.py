"""The times at which llama-server looks whether its clients are still there.

A request that waits for its next result wakes up only when the whole server has had no result for `quiet_s`.
Only then does it notice that its client has left, and only then may it ping. Tokens of other streams and
answers to `/slots` and `/metrics` are results too, so polling them too often keeps abandoned work alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Abandoned", "ClientChecks"]

Result = TypeVar("Result")


class Abandoned(Exception):
    """Raised when the server notices that the client of a request has left."""


class ClientChecks:
    """Waits of one server, interrupted by checks of the clients. It belongs to the running event loop."""

    def __init__(self, quiet_s: float) -> None:
        self.quiet_s = quiet_s
        self._loop = asyncio.get_running_loop()
        self._last_result = self._loop.time()

    def note_result(self) -> None:
        """Note that some request got a result, so that the quiet time begins anew."""
        self._last_result = self._loop.time()

    async def wait(
        self,
        future: asyncio.Future[Result],
        check_client: Callable[[], None],
        abort: asyncio.Future[None] | None = None,
    ) -> Result:
        """Return the result of `future`. Call `check_client`, which may raise, when the server was quiet.

        Once `abort` is done, `check_client` is called at once and must raise.
        """
        began = self._loop.time()
        futures: set[asyncio.Future[Any]] = {future} if abort is None else {future, abort}
        try:
            while not future.done():
                quiet_at = max(self._last_result, began) + self.quiet_s
                if (now := self._loop.time()) >= quiet_at:
                    began = now
                    check_client()
                    continue
                await asyncio.wait(futures, timeout=quiet_at - now, return_when=asyncio.FIRST_COMPLETED)
                if abort is not None and abort.done():
                    check_client()
            return future.result()
        finally:
            future.cancel()

    async def until(
        self, when: float, check_client: Callable[[], None], abort: asyncio.Future[None] | None = None
    ) -> None:
        """Return at the time `when` of the loop's clock."""
        if when <= self._loop.time():
            await asyncio.sleep(0)
            return
        arrival: asyncio.Future[None] = self._loop.create_future()
        alarm = self._loop.call_at(when, _arrive, arrival)
        try:
            await self.wait(arrival, check_client, abort)
        finally:
            alarm.cancel()


def _arrive(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
