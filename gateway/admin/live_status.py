r"""Live snapshots of the gateway for the dashboard: built twice a second, once for all subscribers.

    gateway --tick--> snapshot --> delta frame (the changes since the last tick) --+--> subscriber
                              \-> full frame (for those that missed a tick) -------+--> subscriber

A subscriber is notified of a new snapshot and takes the latest one when it can. A subscriber that does not
read holds only the frame that is being sent to it; nothing accumulates. Without subscribers no snapshot is
built. The streams' token counts are still sampled every few seconds, so that the graphs have a past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from slotgate.gateway.admin.actions import BackendActions
from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.rates import INTERVAL_S, INTERVALS, Rates
from slotgate.gateway.admin.slot_view import LeaseHolders, SlotView
from slotgate.gateway.admin.status import live_requests, status_of
from slotgate.gateway.forwarding.in_flight import Cancellable
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import CapacityError

__all__ = ["MAX_SUBSCRIBERS", "PERIOD_S", "LiveStatus", "Subscriber"]

PERIOD_S: Final = 0.5
MAX_SUBSCRIBERS: Final = 64
_MAX_REQUESTS: Final = 50
"""A frame lists at most this many live requests, and as many ended ones."""


class Subscriber:
    """Passes the latest snapshots to one event stream."""

    def __init__(self, live_status: LiveStatus, on_close: Callable[[], None]) -> None:
        """`on_close` is called when no more frames will come."""
        self.on_close = on_close
        self._live_status = live_status
        self._last_tick = -1
        self._ticked = asyncio.Event()

    async def frame(self) -> bytes:
        """Wait for a frame that this subscriber has not taken yet, and return it."""
        while self._last_tick == self._live_status.ticks:
            await self._ticked.wait()
            self._ticked.clear()
        missed_none = self._last_tick == self._live_status.ticks - 1
        self._last_tick = self._live_status.ticks
        return self._live_status.delta if missed_none else self._live_status.full()

    def notify(self) -> None:
        """Wake `frame`: there is a new snapshot."""
        self._ticked.set()


class LiveStatus:
    """Belongs to the running event loop. `start` begins sampling; `stop` ends it and closes subscribers."""

    def __init__(self, runtime: Runtime, history: History, actions: BackendActions | None = None) -> None:
        self.ticks = 0
        """Number of snapshots so far."""
        self.delta = b""
        """The frame of the last tick for subscribers that have the previous one."""
        self._runtime = runtime
        self._history = history
        self._actions = actions
        self._loop = asyncio.get_running_loop()
        self._rates = Rates(self._loop.time())
        self._slot_view = SlotView()
        self._snapshot: dict[str, Any] = {}
        self._full = b""
        """The full frame of the last tick; empty until a subscriber needs it."""
        self._subscribers: set[Subscriber] = set()
        self._sent_ended = 0
        """`History.count` at the last tick."""
        self._sent_interval = 0
        """Number of the interval that was current at the last tick."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        runtime.in_flight.subscribe(self._answer_ended)

    def __repr__(self) -> str:
        return f"<LiveStatus {len(self._subscribers)} subscribers, {self.ticks} ticks>"

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        self.close()
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close all subscribers and refuse new ones, because the gateway is about to stop."""
        self._closed = True
        for subscriber in list(self._subscribers):
            subscriber.on_close()

    @contextmanager
    def subscription(self, on_close: Callable[[], None]) -> Iterator[Subscriber]:
        """Subscribe for the time of the block.

        Raises `CapacityError`: 503 once the gateway stops, 429 if there are `MAX_SUBSCRIBERS` already.
        """
        if self._closed:
            raise CapacityError(503, "draining", "the gateway is shutting down")
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            message = f"{MAX_SUBSCRIBERS} event streams are open already"
            raise CapacityError(429, "too_many_viewers", message, retry_after_s=5.0)
        subscriber = Subscriber(self, on_close)
        self._subscribers.add(subscriber)
        if len(self._subscribers) == 1:
            self._tick()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    def full(self) -> bytes:
        """Return the full frame of the last tick. It is built when the first subscriber needs it."""
        if not self._full:
            ended = self._history.newest(self._loop.time(), _MAX_REQUESTS)
            self._full = self._frame(ended, self._sent_interval - INTERVALS, full=True)
        return self._full

    # -- mechanism

    def _tick(self) -> None:
        now = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._rates.sample(
            ((answer, context.began_at) for answer, context in self._runtime.in_flight.answers), now
        )
        if self._subscribers:
            self._timer = self._loop.call_later(PERIOD_S, self._tick)
            self._publish(now)
        else:
            self._timer = self._loop.call_later(self._rates.next_sample_in_s(now), self._tick)

    def _publish(self, now: float) -> None:
        """Build a snapshot and notify all subscribers."""
        self.ticks += 1
        self._snapshot = self._new_snapshot(now)
        count = self._history.count
        ended = self._history.newest(now, min(_MAX_REQUESTS, count - self._sent_ended))
        since, self._sent_interval = self._sent_interval, int(now // INTERVAL_S)
        self._full = b""
        self.delta = self._frame(ended, since, full=False)
        self._sent_ended = count
        for subscriber in self._subscribers:
            subscriber.notify()

    def _frame(self, ended: list[dict[str, Any]], since_interval: int, *, full: bool) -> bytes:
        points = self._rates.since(since_interval, self._loop.time())
        graphs = {"span_s": INTERVAL_S, "spans": INTERVALS, "points": points}
        rates = self._snapshot["rates"] | graphs
        return b"data: %b\n\n" % orjson.dumps(
            {**self._snapshot, "full": full, "ended": ended, "rates": rates}
        )

    def _new_snapshot(self, now: float) -> dict[str, Any]:
        fleet, in_flight = self._runtime.fleet, self._runtime.in_flight
        holders: LeaseHolders = {
            lease: (context, progress)
            for answer, context in in_flight.answers
            for progress in (answer.progress(),)
            for lease in progress.leases
        }
        self._slot_view.keep_only({backend.pool.name for backend in fleet.backends.values()})
        status = status_of(self._runtime, self._actions)
        for entry, backend in zip(status["backends"], fleet.backends.values(), strict=True):
            entry["cells"] = self._slot_view.row(backend.pool, holders, now)
        status["live"] = live_requests(in_flight, _MAX_REQUESTS)
        status["live_count"] = len(in_flight.answers)
        status["rates"] = {"tokens_per_s": self._rates.tokens_per_s(now)}
        return status

    def _answer_ended(self, answer: Cancellable, began_at: float) -> None:
        self._rates.ended(answer, began_at, self._loop.time())
