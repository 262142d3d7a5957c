"""The recorder writes every record once and in order, whatever the store does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from slotgate.gateway.usage import StoreError, UsageRecorder
from tests.support.logged import logged
from tests.support.usage import MemoryStore, record

LOCKED = StoreError("the database is locked")
WITHIN_S = 20.0
QUICK = {"interval_s": 0.001, "longest_pause_s": 0.002}


@contextmanager
def recording(store: MemoryStore, **options: Any) -> Iterator[UsageRecorder]:  # noqa: ANN401
    recorder = UsageRecorder(store, **options)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop(WITHIN_S)


def test_a_record_is_written_without_a_flush() -> None:
    store = MemoryStore()
    with recording(store, interval_s=0.01) as recorder:
        recorder.put(record(1))
        store.wait_for_attempts(1)
    assert store.ids == ["r1"]


def test_records_of_one_interval_are_one_transaction() -> None:
    store = MemoryStore()
    with recording(store, interval_s=3600.0) as recorder:
        for number in range(500):
            recorder.put(record(number))
        assert store.attempts == 0
        assert recorder.flush(WITHIN_S)
    assert store.batches == [500]


def test_put_does_not_wait_for_a_blocked_store() -> None:
    store = MemoryStore()
    with recording(store, **QUICK) as recorder:
        with store.held():
            recorder.put(record(0))
            store.wait_for_attempts(1)
            for number in range(1, 2000):
                recorder.put(record(number))
            assert recorder.waiting == 2000
            assert not recorder.flush(0.01)
        assert recorder.flush(WITHIN_S)
    assert store.ids == [f"r{number}" for number in range(2000)]


def test_a_store_that_failed_gets_all_records_later_and_both_are_logged_once() -> None:
    store = MemoryStore()
    store.broken = LOCKED
    with logged() as log, recording(store, **QUICK) as recorder:
        recorder.put(record(1))
        store.wait_for_attempts(5)
        recorder.put(record(2))
        store.broken = None
        assert recorder.flush(WITHIN_S)
    assert store.ids == ["r1", "r2"]
    assert [event["event"] for event in log.events] == [
        "usage cannot be written",
        "usage can be written again",
    ]
    assert log.events[0]["error"] == "the database is locked"


def test_an_unexpected_exception_does_not_end_the_writer() -> None:
    store = MemoryStore()
    store.broken = ZeroDivisionError("of ours")
    with logged() as log, recording(store, **QUICK) as recorder:
        recorder.put(record(1))
        store.wait_for_attempts(2)
        store.broken = None
        assert recorder.flush(WITHIN_S)
    assert store.ids == ["r1"]
    assert log.events[0]["exc_info"] is not None


def test_memory_is_bounded_and_dropped_records_are_counted_and_logged() -> None:
    store = MemoryStore()
    with logged() as log, recording(store, most_waiting=10, **QUICK) as recorder:
        with store.held():
            for number in range(100):
                recorder.put(record(number))
            assert (recorder.waiting, recorder.dropped) == (10, 90)
        assert recorder.flush(WITHIN_S)
        recorder.put(record(100))
        assert recorder.flush(WITHIN_S)
    assert store.ids == [*(f"r{number}" for number in range(10)), "r100"]
    assert [event["dropped"] for event in log.of("usage records dropped")] == [1]


def test_stop_writes_the_rest_and_closes_the_store() -> None:
    store = MemoryStore()
    recorder = UsageRecorder(store, interval_s=3600.0)
    recorder.start()
    for number in range(3000):
        recorder.put(record(number))
    assert recorder.stop(WITHIN_S) == 0
    assert len(store.rows) == 3000
    assert store.closed


def test_stop_waits_for_a_store_that_comes_back() -> None:
    store = MemoryStore()
    store.broken = LOCKED
    recorder = UsageRecorder(store, interval_s=0.001)
    recorder.start()
    recorder.put(record(1))
    store.wait_for_attempts(1)
    attempts = store.attempts
    lost: list[int] = []
    stopping = threading.Thread(target=lambda: lost.append(recorder.stop(WITHIN_S)))
    stopping.start()
    store.wait_for_attempts(attempts + 2)
    store.broken = None
    stopping.join(WITHIN_S)
    assert (lost, store.ids) == ([0], ["r1"])


def test_stop_gives_up_in_time_and_returns_the_number_of_lost_records() -> None:
    store = MemoryStore()
    store.broken = LOCKED
    recorder = UsageRecorder(store, interval_s=0.001)
    recorder.start()
    for number in range(7):
        recorder.put(record(number))
    assert recorder.stop(0.05) == 7


@examples(max_examples=30)
@given(st.lists(st.sampled_from(["put", "break", "mend", "flush"]), max_size=60))
def test_each_record_is_written_once_and_in_order(steps: list[str]) -> None:
    store = MemoryStore()
    put = 0
    with logged(), recording(store, **QUICK) as recorder:
        for step in steps:
            if step == "put":
                recorder.put(record(put))
                put += 1
            elif step == "flush":
                written = recorder.flush(0.01)
                assert not written or len(store.rows) == put
            else:
                store.broken = LOCKED if step == "break" else None
        store.broken = None
        assert recorder.stop(WITHIN_S) == 0
    assert store.ids == [f"r{number}" for number in range(put)]
