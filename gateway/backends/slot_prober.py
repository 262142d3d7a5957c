"""Verified release: asks a backend for /slots until its quarantined slots are idle again.

A request that ended early may still be at work in its slot. Such a slot is in quarantine (see
`admission.quarantine`), which says when /slots may be asked: more frequent queries keep abandoned work alive.
An answer without a list of slots changes nothing.

A backend that does not serve /slots gets its slots back after `quarantine_max_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import structlog

from slotgate.admission import SETTLE_S
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.control_query import OutdatedAnswerError, json_of, query

__all__ = ["SlotProber"]

ASLEEP_S = 1.5
"""A request that was closed this long before llama-server said that it sleeps is not on its way there."""
log = structlog.stdlib.get_logger(__name__)


class SlotProber:
    """`on_slots` is called when slots may have become free."""

    def __init__(self, backend: Backend, *, quarantine_max_s: float, on_slots: Callable[[], None]) -> None:
        self.slots_served = True
        """False once the process has answered that it does not serve /slots."""
        self.probes = 0
        self._backend = backend
        self._quarantine_max_s = quarantine_max_s
        self._on_slots = on_slots
        self._asleep = False
        """True while llama-server has unloaded its model by itself. A query of /slots would wake it."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        backend.pool.on_quarantine.append(self._wake.set)
        backend.on_process_change.append(self._process_changed)
        backend.on_restart.append(self._restarted)

    def __repr__(self) -> str:
        return f"<SlotProber of {self._backend!r}, {self.probes} probes>"

    def start(self) -> None:
        name = f"slots of {self._backend.name}"
        self._task = asyncio.get_running_loop().create_task(self._probe_for_ever(), name=name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    def adjust(self, *, quarantine_max_s: float) -> None:
        self._quarantine_max_s = quarantine_max_s
        self._wake.set()

    def sleeps(self, asleep: bool, asked_at: float) -> None:
        """Note if the model sleeps, as /props said when it was asked at `asked_at`.

        A sleeping llama-server has idle slots, so nothing has to be verified.
        """
        woke, self._asleep = self._asleep and not asleep, asleep
        pool = self._backend.pool
        closed = [slot.closed_at for slot in pool.quarantine.slots]
        if asleep and not pool.leases and closed and max(closed) < asked_at - ASLEEP_S:
            pool.restarted()
            self._on_slots()
        if woke:
            self._wake.set()

    def _process_changed(self, backend: Backend) -> None:
        if backend.facts.can_be_asked:
            self._wake.set()
        else:
            self._asleep = False

    def _restarted(self, _: Backend) -> None:
        self.slots_served = True
        self._on_slots()

    async def _probe_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout_at(self._next_at()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            at = self._next_at()
            if at is not None and loop.time() >= at:
                await self._verify()

    def _next_at(self) -> float | None:
        pool = self._backend.pool
        if not self._backend.facts.can_be_asked or self._asleep:
            return None
        if not self.slots_served and pool.quarantine.slots:
            return min(slot.closed_at for slot in pool.quarantine.slots) + self._quarantine_max_s
        return pool.next_probe_at() if self.slots_served else None

    async def _verify(self) -> None:
        pool = self._backend.pool
        now = asyncio.get_running_loop().time
        if not self.slots_served:
            if pool.expire(now(), self._quarantine_max_s):
                self._on_slots()
            return
        probe = pool.probe_sent(now())
        self.probes += 1
        running = await self._running()
        await asyncio.sleep(SETTLE_S)
        pool.probe_answered(probe, running, now(), frozenset(number for number, _ in running or ()))
        self._on_slots()

    async def _running(self) -> frozenset[tuple[int, str]] | None:
        """Return the tasks that are processed now, as (slot, task id); None if that is unknown."""
        try:
            answer = await query(self._backend, "/slots")
        except (httpx.HTTPError, OutdatedAnswerError):
            return None
        if answer.status_code in (404, 501):
            self.slots_served = False
            log.warning("backend does not serve /slots", backend=self._backend.name)
            return None
        slots = json_of(answer)
        if not isinstance(slots, list):
            return None
        return frozenset(
            (number, str(slot.get("id_task")))
            for number, slot in enumerate(slots)
            if isinstance(slot, dict) and slot.get("is_processing")
        )
