"""Erases what isolated requests have left in the slots of one backend, before another request gets them.

`POST /slots/{n}?action=erase` is a task in llama-server's own queue. It runs after the slot's current work,
so the eraser need not wait for that work. In llama-server every answer counts as a result, so this one may
keep abandoned work alive for another second. A slot that cannot be erased stays out of use until a later
attempt succeeds or the process is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx
import structlog

from slotgate.gateway.backends.backend import Backend

__all__ = ["SlotEraser"]

ASK_S = 30.0
"""The time limit for one erasure. It may have to wait for a batch of a long prompt."""
AGAIN_S = 2.0
"""The pause between two attempts."""
log = structlog.stdlib.get_logger(__name__)


class SlotEraser:
    """Erases the slots of one backend. `on_slots` is called when a slot may be used again."""

    def __init__(self, backend: Backend, on_slots: Callable[[], None]) -> None:
        self._backend = backend
        self._on_slots = on_slots
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        backend.pool.on_unclean.append(self._work.set)

    def __repr__(self) -> str:
        return f"<SlotEraser of {self._backend.name}, {len(self._backend.pool.unclean)} to erase>"

    def start(self) -> None:
        name = f"erasing of {self._backend.name}"
        self._task = asyncio.get_running_loop().create_task(self._erase_all(), name=name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    async def _erase_all(self) -> None:
        unclean = self._backend.pool.unclean
        while True:
            self._work.clear()
            failed = [number for number in list(unclean) if not await self._try_to_erase(number)]
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if failed else None):
                    await self._work.wait()

    async def _try_to_erase(self, number: int) -> bool:
        """Return True if the slot is clean now."""
        fault = await self._erase(number)
        if fault:
            log.warning("slot not erased", backend=self._backend.name, slot=number, reason=fault)
            return False
        self._backend.pool.cleaned(number)
        self._on_slots()
        return True

    async def _erase(self, number: int) -> str:
        """Erase the slot. Return the reason if that failed, or an empty string."""
        try:
            async with asyncio.timeout(ASK_S):
                answer = await self._backend.ask(f"/slots/{number}?action=erase", method="POST")
        except TimeoutError:
            return f"no answer within {ASK_S:g} s"
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if answer.status_code == 200 else f"the backend answered {answer.status_code}"
