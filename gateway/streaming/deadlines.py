"""The deadlines and keep-alives of one streaming request: one timer, times compared when it fires.

Nothing is armed or cancelled for a frame, nor when a phase begins. The timer is set to the earliest time at
which something could be due. For this, every phase that has not begun is taken to begin at once. When the
timer fires and the times have moved on, it is set again.

    keep-alive   the client was sent nothing for `keepalive_interval_s`, in any phase
    first byte   there was no first event `first_byte_s` after the upstream was asked
    idle         there was no further event for `idle_s`, while the upstream was not paused
    total        `total_s` have passed since the upstream was asked
    stall        one `send` has been under way for `client_stall_timeout_s`, or the full buffer has paused the
                 upstream for that long in total

Headers and comments are no events, so they count for none of these limits.

A token on the fast path is counted and not timed, because reading the clock would take a seventh of its cost.
While tokens pass, the count is compared `LOOKS` times within the shortest silence that matters. So the last
token is known to have come between two looks. The keep-alive assumes the earlier look, so that it is never
late. The idle limit assumes the later look, so that it never fires early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from slotgate.gateway.streaming.alarm import Alarm

__all__ = ["Deadlines", "StreamLimits", "StreamTimes"]

LOOKS = 4


@dataclass(frozen=True, slots=True)
class StreamLimits:
    keepalive_interval_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    client_stall_timeout_s: float

    @property
    def shortest_s(self) -> float:
        """The shortest of the limits. Before this time nothing can be due."""
        return min(
            self.keepalive_interval_s,
            self.first_byte_s,
            self.idle_s,
            self.total_s,
            self.client_stall_timeout_s,
        )


@dataclass(slots=True)
class StreamTimes:
    """The times that are compared with the limits. None means that the thing has not happened, or is over."""

    began_at: float
    asked_at: float | None = None
    """The time at which the request was sent; None before that, and after the answer has ended."""
    last_event_at: float | None = None
    untimed: int = 0
    """The number of events so far that were not timed. `last_event_at` does not include them."""
    sending_since: float | None = None
    paused_since: float | None = None
    paused_s: float = 0.0
    """Seconds for which the upstream was paused in total, before `paused_since`."""
    resumed_at: float | None = None
    """The time at which the upstream was last resumed."""


class Deadlines:
    """Calls `on_expired` with the name of each limit that expires, once for each, until `close()`."""

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
        self._expired: set[str] = set()
        now = loop.time()
        self._last_keepalive_at = now
        self._look_s = min(limits.keepalive_interval_s, limits.idle_s) / LOOKS
        self._looked_at = now
        self._untimed = 0
        self._untimed_after = self._untimed_before = 0.0
        """The two looks between which the last untimed event came."""
        self._alarm = Alarm(loop, self._fire)
        self._alarm.set(now + limits.shortest_s)

    def begin(self) -> None:
        """Note the first event. Later events may be untimed, so their count is looked at from now on."""
        self._alarm.set_no_later(self._loop.time() + self._look_s)

    def close(self) -> None:
        """End the watch.

        Forget the functions, because they refer to the request, which refers to this object.
        """
        self._alarm.close()
        self._times = self._on_keepalive = self._on_expired = _gone

    def _due(self, times: StreamTimes, now: float) -> dict[str, float]:
        """Return limit -> the time at which it is due. Phases that have not begun are taken to begin now."""
        limits = self._limits
        stall = limits.client_stall_timeout_s
        asked_at = now if times.asked_at is None else times.asked_at
        due = {
            "client_stall": min(
                (now if times.sending_since is None else times.sending_since) + stall,
                (now if times.paused_since is None else times.paused_since) + stall - times.paused_s,
            ),
            "total_timeout": asked_at + limits.total_s,
        }
        if times.last_event_at is None:
            due["first_byte_timeout"] = asked_at + limits.first_byte_s
        if times.last_event_at is None or times.asked_at is None or times.paused_since is not None:
            due["idle_timeout"] = now + limits.idle_s
        else:
            heard_at = max(times.last_event_at, self._untimed_before)
            due["idle_timeout"] = max(heard_at, times.resumed_at or 0.0) + limits.idle_s
        return {limit: at for limit, at in due.items() if limit not in self._expired}

    def _keepalive_at(self, times: StreamTimes) -> float:
        heard_at = times.began_at if times.last_event_at is None else times.last_event_at
        heard_at = max(heard_at, self._untimed_after, self._last_keepalive_at)
        return heard_at + self._limits.keepalive_interval_s

    def _look(self, now: float) -> StreamTimes:
        """Read the times. If events have passed untimed since the last look, note both looks."""
        times = self._times()
        if times.untimed != self._untimed:
            self._untimed = times.untimed
            self._untimed_after, self._untimed_before = self._looked_at, now
        self._looked_at = now
        return times

    def _arm(self, now: float, times: StreamTimes) -> None:
        at = min(self._keepalive_at(times), *self._due(times, now).values())
        if times.last_event_at is not None and times.asked_at is not None:
            at = min(at, now + self._look_s)
        self._alarm.set(max(at, now))

    def _fire(self) -> None:
        now = self._loop.time()
        times = self._look(now)
        expired = [limit for limit, at in self._due(times, now).items() if now >= at]
        keepalive = now >= self._keepalive_at(times)
        self._expired.update(expired)
        if keepalive:
            self._last_keepalive_at = now
        self._arm(now, times)
        for limit in expired:
            self._on_expired(limit)
        if keepalive and not expired and times.sending_since is None:
            self._on_keepalive()


def _gone(*_: object) -> NoReturn:
    raise RuntimeError("the deadlines are closed")
