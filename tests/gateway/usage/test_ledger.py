"""The ledger records ended requests, reads today's usage at the start, and answers queries."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, date, datetime

import pytest

from slotgate.gateway.http.context import RequestContext, TenantIdentity
from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage import (
    NotRecorded,
    StoreError,
    StoreFault,
    UsageLedger,
    UsageQuery,
    UsageRecord,
    UsageRecorder,
    UsageRow,
    open_ledger,
)
from tests.support.logged import logged
from tests.support.usage import NOON, MemoryStore, record

pytestmark = pytest.mark.anyio


def ended(**members: object) -> RequestContext:
    context = RequestContext("r1", 100.0, TenantIdentity("a"), model="m", backend="gpu0", status=200)
    context.queued_at, context.granted_at, context.ended_at = 100.5, 101.0, 103.0
    for name, value in members.items():
        setattr(context, name, value)
    return context


async def test_a_record_is_made_from_the_context_of_an_ended_request() -> None:
    context = ended(
        key="ci", path="/v1/x", queued_at=100.5, granted_at=101.0, first_output_at=102.0, prompt_tokens=7
    )
    assert UsageRecord.of(context, NOON) == record(
        1,
        key="ci",
        path="/v1/x",
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=0,
        queue_ms=500.0,
        ttft_ms=2000.0,
        duration_ms=3000.0,
    )


async def test_values_that_no_database_accepts_are_adjusted() -> None:
    made = UsageRecord.of(ended(model="m\0", prompt_tokens=10**30, status=None), NOON)
    assert (made.model, made.prompt_tokens, made.status, made.outcome) == ("m", 2**53, 0, "error")


async def test_only_a_request_that_held_a_slot_is_recorded() -> None:
    store = MemoryStore()
    usage = UsageLedger(store, UsageRecorder(store))
    await usage.start()
    usage.note(ended())
    usage.note(ended(backend=None))
    usage.note(ended(queued_at=None, granted_at=None))
    await usage.stop()
    assert store.ids == ["r1"]


async def test_a_request_that_ended_as_it_waited_for_a_second_slot_is_recorded() -> None:
    store = MemoryStore()
    usage = UsageLedger(store, UsageRecorder(store))
    await usage.start()
    usage.note(ended(id="r2", granted_at=None))
    await usage.stop()
    assert store.ids == ["r2"]


async def test_without_a_store_nothing_is_recorded_and_queries_fail() -> None:
    async with open_ledger(UsageSettings(store="none")) as usage:
        usage.note(ended())
        assert await usage.tokens_by_tenant(usage.day) == {}
        with pytest.raises(NotRecorded):
            await usage.report(UsageQuery.parse())


async def test_the_start_reads_today_s_usage() -> None:
    store = MemoryStore()
    store.write([UsageRow("w", 1, record(ended_at=datetime.now(UTC).timestamp()))])
    usage = UsageLedger(store, UsageRecorder(store))
    await usage.start()
    if usage.day == datetime.now(UTC).date():
        assert dict(usage.tokens_today) == {"a": 15}
    await usage.stop()


async def test_a_silent_store_delays_the_start_by_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotgate.gateway.usage.ledger.START_S", 0.0)
    store = MemoryStore()
    store.broken = StoreError("unreachable")
    usage = UsageLedger(store, UsageRecorder(store))
    with logged() as log:
        await usage.start()
        usage.note(ended())
        store.broken = None
        await usage.stop()
    assert dict(usage.tokens_today) == {}
    assert store.ids == ["r1"]
    assert [
        event["log_level"] for event in log.of("usage store does not answer; records wait in memory")
    ] == ["warning"]


async def test_a_store_with_a_fault_fails_the_start() -> None:
    store = MemoryStore()
    store.broken = StoreFault("of the operator's")
    with pytest.raises(StoreFault):
        await UsageLedger(store, UsageRecorder(store)).start()


class SlowStore(MemoryStore):
    """A store that answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = threading.Event()

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        self.turn.wait(20)
        return super().tokens_by_tenant(day)


async def test_queries_queue_up_to_a_limit_and_never_block_the_loop() -> None:
    store = SlowStore()
    usage = UsageLedger(store, UsageRecorder(store))
    asking = [asyncio.create_task(usage.tokens_by_tenant(usage.day)) for _ in range(6)]
    done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert all(isinstance(task.exception(), StoreError) for task in done)
    store.turn.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [False] * 4 + [True] * 2
