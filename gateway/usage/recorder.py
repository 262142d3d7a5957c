"""Between requests, which must not wait, and a store, which may be slow, locked or gone.

`put` appends to a bounded queue and returns. A thread of its own takes what has gathered, at most every half
second, and writes it in one transaction; a batch that the store does not take is kept and tried again, later
and later. So the death of the process costs the last second, and an orderly stop costs nothing.

What passes between the two threads is a deque and events: no lock is held by one while the other wants it.
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
"""Records kept in memory while the store cannot be written, about 1 KB each."""
BATCH = 1_000
LONGEST_PAUSE_S = 10.0
LAST_PAUSE_S = 0.1
"""Between two attempts while the process waits to end."""
REPORT_EVERY_S = 30.0
log = structlog.stdlib.get_logger(__name__)


class UsageRecorder:
    """`put` by one thread; `flush` and `stop` by any, never the event loop's: they wait."""

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
        """Taken from the queue and not yet written."""
        self._taken = 0
        self._written = 0
        self.dropped = 0
        """Records that found the queue full."""
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
        """Records that are not in the store yet."""
        return self._taken - self._written

    def start(self) -> None:
        self._thread.start()

    def put(self, record: UsageRecord) -> None:
        """Take it, or count it as dropped. Never waits."""
        if self.waiting >= self._most_waiting:
            self._drop()
            return
        self._taken += 1
        self._queue.append(UsageRow(self._writer, self._taken, record))
        if not self._work.is_set():
            self._work.set()

    def flush(self, within_s: float) -> bool:
        """Whether everything that was put before is in the store, at the latest after this time."""
        wanted = self._taken
        self._hurry.set()
        self._work.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._written >= wanted, within_s)

    def stop(self, within_s: float) -> int:
        """Write what is left and end. Returns how many records could not be written in this time."""
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
