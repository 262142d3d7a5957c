"""The deadlines and keep-alives of one streaming request: one timer, times compared when it fires.

Nothing is armed or cancelled per frame. The timer is set to the earliest moment at which something could be
due, judging by the times known now; when it fires and the times have moved on, it is set again.

    keep-alive   nothing heard by the client for `keepalive_interval_s`, in every phase
    first byte   no first event `first_byte_s` after the upstream was asked
    idle         no further event for `idle_s`
    total        `total_s` since the upstream was asked
    stall        one `send` under way for `client_stall_timeout_s`, or a full buffer that has stopped the
                 upstream for that long in all

Proof of life that is no event (headers, comments) counts for none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["StreamLimits", "StreamTimes", "Watchdog"]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    keepalive_interval_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    client_stall_timeout_s: float


@dataclass(slots=True)
class StreamTimes:
    """What the watchdog compares; None: not (yet) so."""

    began_at: float
    asked_at: float | None = None
    """The upstream was sent the request and its answer has not ended."""
    last_event_at: float | None = None
    sending_since: float | None = None
    stopped_since: float | None = None
    stopped_s: float = 0.0
    """How long the upstream has been stopped before `stopped_since`."""


class Watchdog:
    """`on_expired` is called with the name of the limit; the watchdog then ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: StreamLimits,
        times: Callable[[], StreamTimes],
        *,
        on_keepalive: Callable[[], None],
        on_expired: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._times = times
        self._on_keepalive = on_keepalive
        self._on_expired = on_expired
        self._last_keepalive_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def review(self) -> None:
        """A phase has begun whose limit may be due before the timer."""
        self.close()
        self._arm()

    def _deadlines(self, times: StreamTimes, now: float) -> dict[str, float]:
        limits = self._limits
        stall = limits.client_stall_timeout_s
        due = {"client_stall": (now if times.sending_since is None else times.sending_since) + stall}
        if times.stopped_since is not None:
            due["client_stall"] = min(due["client_stall"], times.stopped_since + stall - times.stopped_s)
        if times.asked_at is not None:
            due["total_timeout"] = times.asked_at + limits.total_s
            if times.last_event_at is None:
                due["first_byte_timeout"] = times.asked_at + limits.first_byte_s
            elif times.stopped_since is None:
                due["idle_timeout"] = times.last_event_at + limits.idle_s
        return due

    def _keepalive_at(self, times: StreamTimes) -> float:
        heard = max(times.last_event_at or times.began_at, self._last_keepalive_at)
        return heard + self._limits.keepalive_interval_s

    def _arm(self) -> None:
        now = self._loop.time()
        times = self._times()
        at = min(self._keepalive_at(times), *self._deadlines(times, now).values())
        self._timer = self._loop.call_at(max(at, now), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        times = self._times()
        for limit, at in self._deadlines(times, now).items():
            if now >= at:
                self._on_expired(limit)
                return
        if now >= self._keepalive_at(times):
            self._last_keepalive_at = now
            if times.sending_since is None:
                self._on_keepalive()
        self._arm()
