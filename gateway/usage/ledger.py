"""What requests used, for those who note it and those who ask. The store is touched by other threads only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import TypeVar

import structlog

from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage.opening import store_of
from slotgate.gateway.usage.query import UsageQuery, UsageTotal
from slotgate.gateway.usage.record import UsageRecord
from slotgate.gateway.usage.recorder import UsageRecorder
from slotgate.gateway.usage.store import StoreError, StoreFault, UsageStore

__all__ = ["NotRecorded", "UsageLedger", "UsageReport", "open_ledger"]

START_S = 5.0
"""How long the start waits for a store that is locked or unreachable; then it goes on without."""
LAST_WRITE_S = 5.0
"""How long the end waits for it."""
CURRENT_S = 2.0
"""How long a question waits for the records in memory to be written."""
ANSWER_S = 10.0
MOST_ASKING = 4
_PAUSE_S = 0.2
T = TypeVar("T")
log = structlog.stdlib.get_logger(__name__)


class NotRecorded(Exception):
    """No store is configured."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    question: UsageQuery
    totals: list[UsageTotal]
    current: bool
    """Whether every request that was over when it was asked is in it."""

    @property
    def complete(self) -> bool:
        return len(self.totals) < self.question.most


class UsageLedger:
    """Belongs to the running event loop; see `keeping`. Without a store, nothing is noted."""

    def __init__(self, store: UsageStore | None = None, recorder: UsageRecorder | None = None) -> None:
        self._store = store
        self.recorder = recorder
        self.day: date = datetime.now(UTC).date()
        self.tokens_today: Mapping[str, int] = MappingProxyType({})
        """Prompt and completion tokens of each tenant on `day`, the UTC day of the start, as found then."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="usage-reader")
        self._asking = 0

    def __repr__(self) -> str:
        return f"<UsageLedger {self._store!r} {self.recorder!r}>"

    def note(self, context: RequestContext) -> None:
        """A request is over; it is recorded if it held a slot. Never waits."""
        held_a_slot = context.granted_at is not None and context.backend is not None
        if self.recorder is not None and held_a_slot:
            self.recorder.put(UsageRecord.of(context, time.time()))

    async def tokens_by_tenant(self, day: date) -> dict[str, int]:
        """Prompt and completion tokens of a UTC day. Raises `StoreError`; empty without a store."""
        store = self._store
        return {} if store is None else await self._asked(lambda: store.tokens_by_tenant(day))

    async def report(self, question: UsageQuery) -> UsageReport:
        """Raises `StoreError`, and `NotRecorded` without a store."""
        store, recorder = self._store, self.recorder
        if store is None or recorder is None:
            raise NotRecorded

        def answered() -> UsageReport:
            current = recorder.flush(CURRENT_S)
            return UsageReport(question, store.totals(question, within_s=ANSWER_S), current)

        return await self._asked(answered)

    async def _asked(self, answer: Callable[[], T]) -> T:
        if self._asking >= MOST_ASKING:
            raise StoreError("others are asking already")
        self._asking += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        finally:
            self._asking -= 1

    async def start(self) -> None:
        """Raises `StoreFault` if the store cannot work as it is configured."""
        store, recorder = self._store, self.recorder
        if store is None or recorder is None:
            return
        tokens = await self._asked(lambda: _prepared(store, self.day))
        if tokens is not None:
            self.tokens_today = MappingProxyType(tokens)
        recorder.start()
        log.info("usage", store=store.place)

    async def stop(self) -> None:
        """Write what is left, as long as that may take, and say what was lost."""
        recorder = self.recorder
        if recorder is not None:
            lost = await asyncio.to_thread(recorder.stop, LAST_WRITE_S)
            if lost or recorder.dropped:
                log.warning("usage records lost", at_the_end=lost, dropped=recorder.dropped)
        self._threads.shutdown(wait=False, cancel_futures=True)


@asynccontextmanager
async def open_ledger(settings: UsageSettings) -> AsyncIterator[UsageLedger]:
    """Records are kept as the settings say until the block is left, and all of them are written then.

    Raises `StoreFault` if they cannot be.
    """
    store = store_of(settings)
    usage = UsageLedger(store, UsageRecorder(store) if store is not None else None)
    await usage.start()
    try:
        yield usage
    finally:
        await usage.stop()


def _prepared(store: UsageStore, day: date) -> dict[str, int] | None:
    """What the tenants have used of this day; None where the store did not answer in time."""
    end = time.monotonic() + START_S
    while True:
        try:
            store.prepare()
            return store.tokens_by_tenant(day)
        except StoreFault:
            raise
        except StoreError as error:
            if time.monotonic() > end:
                log.warning("usage store does not answer; records wait in memory", error=str(error))
                return None
            time.sleep(_PAUSE_S)
