"""Usage records for the event loop: record a request, and query the store.

Only other threads use the store.
"""

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
"""Longest wait at the start for a locked or unreachable store.

After it the gateway starts without the store.
"""
LAST_WRITE_S = 5.0
"""Longest wait at the end for the store to take the last records."""
CURRENT_S = 2.0
"""Longest wait of a query for the records in memory to be written."""
ANSWER_S = 10.0
"""Longest time of a query."""
MOST_ASKING = 4
"""Queries at a time; one more is refused."""
_PAUSE_S = 0.2
T = TypeVar("T")
log = structlog.stdlib.get_logger(__name__)


class NotRecorded(Exception):
    """Usage is not recorded: no store is configured."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The answer to a query."""

    question: UsageQuery
    totals: list[UsageTotal]
    current: bool
    """True if the report includes every request that had ended when it was asked for."""

    @property
    def complete(self) -> bool:
        """True if no group was left out."""
        return len(self.totals) < self.question.most


class UsageLedger:
    """Belongs to the running event loop; see `open_ledger`. Without a store it records nothing."""

    def __init__(self, store: UsageStore | None = None, recorder: UsageRecorder | None = None) -> None:
        self._store = store
        self.recorder = recorder
        self.day: date = datetime.now(UTC).date()
        self.tokens_today: Mapping[str, int] = MappingProxyType({})
        """Tokens of each tenant on `day`, the UTC day of the start, as the store had them at the start."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="usage-reader")
        self._asking = 0

    def __repr__(self) -> str:
        return f"<UsageLedger {self._store!r} {self.recorder!r}>"

    def note(self, context: RequestContext) -> None:
        """Record a request that has ended, if it held a slot. Never waits."""
        held_a_slot = context.queued_at is not None and context.backend is not None
        if self.recorder is not None and held_a_slot:
            self.recorder.put(UsageRecord.of(context, time.time()))

    async def tokens_by_tenant(self, day: date) -> dict[str, int]:
        """Return the tokens of each tenant on a UTC day; empty without a store. Raises `StoreError`."""
        store = self._store
        return {} if store is None else await self._asked(lambda: store.tokens_by_tenant(day))

    async def report(self, question: UsageQuery) -> UsageReport:
        """Answer a query. Raises `StoreError`, and `NotRecorded` without a store."""
        store, recorder = self._store, self.recorder
        if store is None or recorder is None:
            raise NotRecorded

        def answered() -> UsageReport:
            current = recorder.flush(CURRENT_S)
            return UsageReport(question, store.totals(question, within_s=ANSWER_S), current)

        return await self._asked(answered)

    async def _asked(self, answer: Callable[[], T]) -> T:
        if self._asking >= MOST_ASKING:
            raise StoreError("too many queries are running")
        self._asking += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        finally:
            self._asking -= 1

    async def start(self) -> None:
        """Prepare the store and start to record. Raises `StoreFault` if the configured store cannot work."""
        store, recorder = self._store, self.recorder
        if store is None or recorder is None:
            return
        tokens = await self._asked(lambda: _prepared(store, self.day))
        if tokens is not None:
            self.tokens_today = MappingProxyType(tokens)
        recorder.start()
        log.info("usage", store=store.place)

    async def stop(self) -> None:
        """Write the rest within `LAST_WRITE_S`, and log how many records were lost."""
        recorder = self.recorder
        if recorder is not None:
            lost = await asyncio.to_thread(recorder.stop, LAST_WRITE_S)
            if lost or recorder.dropped:
                log.warning("usage records lost", at_the_end=lost, dropped=recorder.dropped)
        self._threads.shutdown(wait=False, cancel_futures=True)


@asynccontextmanager
async def open_ledger(settings: UsageSettings) -> AsyncIterator[UsageLedger]:
    """Record usage until the block is left; then write the rest.

    Raises `StoreFault` if the store cannot work.
    """
    store = store_of(settings)
    usage = UsageLedger(store, UsageRecorder(store) if store is not None else None)
    await usage.start()
    try:
        yield usage
    finally:
        await usage.stop()


def _prepared(store: UsageStore, day: date) -> dict[str, int] | None:
    """Prepare the store and return the tokens of this day, or None if it did not answer in time."""
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
