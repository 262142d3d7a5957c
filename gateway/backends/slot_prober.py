"""Verified release: asks a backend for /slots until its quarantined slots are idle again.

A request that ended early may still be at work in its slot, so the slot is in quarantine. The quarantine says
when /slots may be asked (see `admission.quarantine`), because more frequent queries keep abandoned work
alive. An answer without a list of slots changes nothing at first.

No slot waits for ever. It may happen that /slots is not served, is refused, is broken or does not answer. If
no answer has shown a slot for `quarantine_max_s`, the slot may be granted again as soon as /health is good.
The log says once that /slots cannot be read, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import structlog

from slotgate.admission import SETTLE_S
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.control_query import OutdatedAnswerError, json_of, query
from slotgate.gateway.backends.state import LastHealth

__all__ = ["SlotProber"]

ASLEEP_S = 1.5
"""A request closed this many seconds before llama-server reported its sleep cannot arrive there any more."""
log = structlog.stdlib.get_logger(__name__)


class SlotProber:
    """Asks one backend for its slots. `on_slots` is called when slots may have become free."""

    def __init__(self, backend: Backend, *, quarantine_max_s: float, on_slots: Callable[[], None]) -> None:
        self.slots_served = True
        """False once the process has answered that it does not serve /slots."""
        self.probes = 0
        self.failure = ""
        """The reason why the last answer could not be read; empty if it could."""
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
        backend.on_change.append(self._state_changed)

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

    def _state_changed(self, _: Backend) -> None:
        """Look again, because a slot may have waited only for the health to become good."""
        if self._backend.pool.expires_at(self._quarantine_max_s) is not None:
            self._wake.set()

    def _restarted(self, _: Backend) -> None:
        self.slots_served = True
        self._note("")
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
            now = loop.time()
            if _is_due(self._expires_at, now):
                self._expire(now)
            elif _is_due(self._probe_at, now):
                await self._verify()

    def _next_at(self) -> float | None:
        return min((at for at in (self._probe_at, self._expires_at) if at is not None), default=None)

    @property
    def _probe_at(self) -> float | None:
        """The time at which the next probe may leave; None if none may or needs to."""
        may_ask = self._backend.facts.can_be_asked and not self._asleep and self.slots_served
        return self._backend.pool.next_probe_at() if may_ask else None

    @property
    def _expires_at(self) -> float | None:
        """The time at which a slot is granted again without an answer.

        None while answers come, or while the health is not good.
        """
        is_good = self._backend.facts.health is LastHealth.GOOD
        is_blind = bool(self.failure) or self._asleep
        return self._backend.pool.expires_at(self._quarantine_max_s) if is_good and is_blind else None

    def _expire(self, now: float) -> None:
        freed = self._backend.pool.expire(now, self._quarantine_max_s)
        if freed and self.slots_served:
            log.warning(
                "slots freed unverified", backend=self._backend.name, slots=freed, reason=self.failure
            )
        self._on_slots()

    async def look(self) -> None:
        """Ask once, before the first grant, which slots are busy with other programs' requests.

        A gateway that was killed leaves its requests in the slots. They count as foreign work while they run.
        """
        await self._ask()

    async def _verify(self) -> None:
        self.probes += 1
        await self._ask()
        self._on_slots()

    async def _ask(self) -> None:
        pool = self._backend.pool
        now = asyncio.get_running_loop().time
        probe = pool.probe_sent(now())
        running = await self._running()
        await asyncio.sleep(SETTLE_S)
        pool.probe_answered(probe, running, now(), frozenset(number for number, _ in running or ()))
        if pool.foreign:
            self._wake.set()

    async def _running(self) -> frozenset[tuple[int, str]] | None:
        """Return the tasks that are processed now, as (slot, task id); None if that is unknown."""
        try:
            answer = await query(self._backend, "/slots")
        except OutdatedAnswerError:
            return None
        except httpx.HTTPError as error:
            self._note(str(error) or type(error).__name__)
            return None
        slots = json_of(answer)
        if not isinstance(slots, list):
            self.slots_served = answer.status_code not in (404, 501)
            self._note(_fault(answer))
            return None
        self._note("")
        return frozenset(
            (number, str(slot.get("id_task")))
            for number, slot in enumerate(slots)
            if isinstance(slot, dict) and slot.get("is_processing")
        )

    def _note(self, failure: str) -> None:
        """Log that /slots cannot be read any more, or can be read again."""
        if failure and not self.failure:
            limit = f"an abandoned slot stays out of use for {self._quarantine_max_s:g} s"
            log.warning("cannot read /slots", backend=self._backend.name, reason=failure, so=limit)
        self.failure = failure
        self._backend.slots_failure = failure


def _fault(answer: httpx.Response) -> str:
    if answer.status_code in (404, 501):
        return f"it is not served ({answer.status_code})"
    if answer.status_code == 200:
        return "it has no list of slots"
    return f"it was answered with status {answer.status_code}"


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
