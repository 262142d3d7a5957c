"""The scheduler with a timer of the running event loop: waits end although nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from admission.scheduler import QueueLimits, Scheduler
from admission.ticket import Demand, Ticket

__all__ = ["AdmissionQueue"]


class AdmissionQueue:
    """Belongs to one event loop, whose clock it uses. One timer for all tickets."""

    def __init__(self, limits: QueueLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler = Scheduler(limits, loop.time)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<AdmissionQueue {self.scheduler!r}>"

    def submit(self, demand: Demand, on_settled: Callable[[], None]) -> Ticket:
        """See `Scheduler.submit`. Raises `Refused`."""
        ticket = self.scheduler.submit(demand, on_settled)
        if ticket.queued:
            self._arm()
        return ticket

    def close(self) -> None:
        """No timer is left behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        at = self.scheduler.next_tick_at()
        if at is None or (self._timer is not None and self._timer.when() <= at):
            return
        self.close()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.scheduler.tick()
        self._arm()
