r"""The live picture of the gateway: made twice a second while somebody looks, once for all who do.

    fleet --tick--> picture --> frame (what is new since the tick before) --+--> viewer
                            \-> whole frame (for who missed that tick) -----+--> viewer

A viewer is told that there is a new picture and takes the latest when it can: one that does not read is owed
nothing, and what it holds is the frame that is being sent to it. While nobody looks, all that happens is a
glance at the counts of the streams every few seconds, so that the graphs have a past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.orders import Orders
from slotgate.gateway.admin.rates import SPAN_S, SPANS, Rates
from slotgate.gateway.admin.slot_view import Held, SlotView
from slotgate.gateway.admin.status import live_requests, status_of
from slotgate.gateway.forwarding.in_flight import Cancellable
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import CapacityError

__all__ = ["MOST_VIEWERS", "PERIOD_S", "LiveStatus", "Subscriber"]

PERIOD_S: Final = 0.5
MOST_VIEWERS: Final = 64
_MOST_REQUESTS: Final = 50
"""Of those under way, and of those that have ended, that one frame tells."""


class Subscriber:
    """One who looks. `on_close` is called when there is nothing more to see."""

    def __init__(self, live_status: LiveStatus, on_close: Callable[[], None]) -> None:
        self.on_close = on_close
        self._live_status = live_status
        self._seen = -1
        self._news = asyncio.Event()

    async def frame(self) -> bytes:
        """The latest frame, when there is one that was not taken yet."""
        while self._seen == self._live_status.ticks:
            await self._news.wait()
            self._news.clear()
        follows = self._seen == self._live_status.ticks - 1
        self._seen = self._live_status.ticks
        return self._live_status.news if follows else self._live_status.whole()

    def notify(self) -> None:
        self._news.set()


class LiveStatus:
    """Belongs to the running event loop. `start` begins the ten minutes, `stop` ends everything."""

    def __init__(self, runtime: Runtime, history: History, orders: Orders | None = None) -> None:
        self.ticks = 0
        self.news = b""
        """The frame of the last tick, for who has seen the one before."""
        self._runtime = runtime
        self._history = history
        self._orders = orders
        self._loop = asyncio.get_running_loop()
        self._rates = Rates(self._loop.time())
        self._cells = SlotView()
        self._picture: dict[str, Any] = {}
        self._whole = b""
        self._subscribers: set[Subscriber] = set()
        self._told_ended = 0
        self._told_span = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        runtime.in_flight.subscribe(self._answer_ended)

    def __repr__(self) -> str:
        return f"<LiveStatus {len(self._subscribers)} viewers, {self.ticks} ticks>"

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        self.close()
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """No more viewers: the gateway is about to stop."""
        self._closed = True
        for viewer in list(self._subscribers):
            viewer.on_close()

    @contextmanager
    def viewing(self, on_close: Callable[[], None]) -> Iterator[Subscriber]:
        """Raises `CapacityError`: 503 once the gateway stops, 429 where enough look already."""
        if self._closed:
            raise CapacityError(503, "draining", "the gateway is shutting down")
        if len(self._subscribers) >= MOST_VIEWERS:
            raise CapacityError(429, "too_many_viewers", f"{MOST_VIEWERS} look already", retry_after_s=5.0)
        viewer = Subscriber(self, on_close)
        self._subscribers.add(viewer)
        if len(self._subscribers) == 1:
            self._tick()
        try:
            yield viewer
        finally:
            self._subscribers.discard(viewer)

    def whole(self) -> bytes:
        """The frame of the last tick for who has seen none before it; made when the first one needs it."""
        if not self._whole:
            ended = self._history.newest(self._loop.time(), _MOST_REQUESTS)
            self._whole = self._frame(ended, self._told_span - SPANS, full=True)
        return self._whole

    # -- mechanism

    def _tick(self) -> None:
        now = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._rates.look(
            ((answer, context.began_at) for answer, context in self._runtime.in_flight.answers), now
        )
        if self._subscribers:
            self._timer = self._loop.call_later(PERIOD_S, self._tick)
            self._draw(now)
        else:
            self._timer = self._loop.call_later(self._rates.next_look_in_s(now), self._tick)

    def _draw(self, now: float) -> None:
        self.ticks += 1
        self._picture = self._now(now)
        count = self._history.count
        ended = self._history.newest(now, min(_MOST_REQUESTS, count - self._told_ended))
        since, self._told_span = self._told_span, int(now // SPAN_S)
        self._whole = b""
        self.news = self._frame(ended, since, full=False)
        self._told_ended = count
        for viewer in self._subscribers:
            viewer.notify()

    def _frame(self, ended: list[dict[str, Any]], since_span: int, *, full: bool) -> bytes:
        spans = self._rates.since(since_span, self._loop.time())
        graphs = {"span_s": SPAN_S, "spans": SPANS, "points": spans}
        said = {**self._picture, "full": full, "ended": ended, "rates": self._picture["rates"] | graphs}
        return b"data: %b\n\n" % orjson.dumps(said)

    def _now(self, now: float) -> dict[str, Any]:
        fleet, in_flight = self._runtime.fleet, self._runtime.in_flight
        held: Held = {
            progress.lease: (context, progress)
            for answer, context in in_flight.answers
            if (progress := answer.progress()).lease is not None
        }
        self._cells.forget({backend.pool.name for backend in fleet.backends.values()})
        status = status_of(self._runtime, self._orders)
        for entry, backend in zip(status["backends"], fleet.backends.values(), strict=True):
            entry["cells"] = self._cells.row(backend.pool, held, now)
        status["live"] = live_requests(in_flight, _MOST_REQUESTS)
        status["live_count"] = len(in_flight.answers)
        status["rates"] = {"tokens_per_s": self._rates.tokens_per_s(now)}
        return status

    def _answer_ended(self, answer: Cancellable, began_at: float) -> None:
        self._rates.ended(answer, began_at, self._loop.time())
