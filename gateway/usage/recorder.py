"""Write usage records in a thread of its own, because requests must not wait for a slow or locked store.

`put` appends to a bounded queue and returns. The thread takes the queued records at most every half second
and writes them in one transaction. A batch that fails is kept and retried, with growing pauses. So a crash of
the process loses about the last second, and an orderly stop loses nothing.

The threads share only a deque and events, so the event loop never waits for a lock that the writer holds.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque

import structlog

from slotgate.gateway.usage.record import UsageRecord
from slotgate.gateway.usage.store import StoreError, UsageRow, UsageStore

__all__ = ["UsageRecorder"]

INTERVAL_S = 0.5
MOST_WAITING = 50_000
"""Records kept in memory while the store fails, about 1 KB each. Further records are dropped."""
BATCH = 1_000
LONGEST_PAUSE_S = 10.0
LAST_PAUSE_S = 0.1
"""Pause between two attempts while the process waits to end."""
REPORT_EVERY_S = 30.0
log = structlog.stdlib.get_logger(__name__)


class UsageRecorder:
    """Call `put` from one thread only. `flush` and `stop` wait, so never call them from the event loop."""

    def __init__(
        self,
        store: UsageStore,
        *,
        interval_s: float = INTERVAL_S,
        most_waiting: int = MOST_WAITING,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._most_waiting = most_waiting
        self._longest_pause_s = longest_pause_s
        self._writer = secrets.token_hex(8)
        self._queue: deque[UsageRow] = deque()
        self._batch: list[UsageRow] = []
        """Records that were taken from the queue and are not written yet."""
        self._taken = 0
        self._written = 0
        self.dropped = 0
        """Number of records that were dropped because the queue was full."""
        self._failing = False
        self._dropped_before = 0
        self._report_at = 0.0
        self._work = threading.Event()
        self._hurry = threading.Event()
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="usage-recorder", daemon=True)

    def __repr__(self) -> str:
        return f"<UsageRecorder {self.waiting} waiting, {self._written} written, {self.dropped} dropped>"

    @property
    def waiting(self) -> int:
        """Number of records that are not in the store yet."""
        return self._taken - self._written

    def start(self) -> None:
        self._thread.start()

    def put(self, record: UsageRecord) -> None:
        """Queue the record, or count it as dropped if the queue is full. Never waits."""
        if self.waiting >= self._most_waiting:
            self._drop()
            return
        self._taken += 1
        self._queue.append(UsageRow(self._writer, self._taken, record))
        if not self._work.is_set():
            self._work.set()

    def flush(self, within_s: float) -> bool:
        """Wait until all records put so far are in the store. Return False if that takes longer."""
        wanted = self._taken
        self._hurry.set()
        self._work.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._written >= wanted, within_s)

    def stop(self, within_s: float) -> int:
        """Write the rest and end the thread. Return the number of records that were not written in time."""
        self._stopping.set()
        self._hurry.set()
        self._work.set()
        self._thread.join(within_s)
        self._given_up.set()
        return self.waiting

    # -- the writer's thread

    def _run(self) -> None:
        while True:
            self._work.wait()
            if not self._stopping.is_set():
                self._hurry.wait(self._interval_s)
            self._hurry.clear()
            self._work.clear()
            while self._queue and not self._given_up.is_set():
                self._write_batch()
            if self._stopping.is_set():
                break
        self._store.close()

    def _write_batch(self) -> None:
        count = min(len(self._queue), BATCH)
        self._batch = [self._queue.popleft() for _ in range(count)]
        pause_s = self._interval_s
        while not self._written_now():
            if self._stopping.is_set():
                if self._given_up.wait(LAST_PAUSE_S):
                    return
            else:
                self._hurry.wait(pause_s)
                self._hurry.clear()
                pause_s = min(pause_s * 2, self._longest_pause_s)
        with self._progress:
            self._written += count
            self._progress.notify_all()

    def _written_now(self) -> bool:
        try:
            self._store.write(self._batch)
        except Exception as error:
            if not self._failing:
                unknown = None if isinstance(error, StoreError) else error
                log.warning("usage cannot be written", error=str(error), exc_info=unknown)
            self._failing = True
            return False
        if self._failing:
            log.info("usage can be written again", waiting=self.waiting)
        self._failing = False
        return True

    def _drop(self) -> None:
        self.dropped += 1
        now = time.monotonic()
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            fresh, self._dropped_before = self.dropped - self._dropped_before, self.dropped
            log.warning("usage records dropped", dropped=fresh, waiting=self.waiting)
