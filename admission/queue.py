"""The scheduler with a timer of the running event loop: waits end although nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from admission.demand import Demand
from admission.scheduler import QueueLimits, Scheduler
from admission.ticket import Ticket

__all__ = ["AdmissionQueue"]


class AdmissionQueue:
    """Belongs to one event loop, whose clock it uses. One timer for all tickets."""

    def __init__(self, limits: QueueLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler = Scheduler(limits, loop.time)
        self.scheduler.on_dispatch = self._arm
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.on_change: Callable[[], None] = _nobody_looks
        """Called after every change of what waits, runs or admits; must not raise, nor change anything."""

    def __repr__(self) -> str:
        return f"<AdmissionQueue {self.scheduler!r}>"

    def submit(self, demand: Demand, on_settled: Callable[[], None]) -> Ticket:
        """See `Scheduler.submit`. Raises `Refused`."""
        return self.scheduler.submit(demand, on_settled)

    def close(self) -> None:
        """No timer is left behind, and none is set any more."""
        self._closed = True
        self._disarm()

    def _arm(self) -> None:
        """Have the timer go off when the scheduler needs it; too early does no harm."""
        self.on_change()
        at = self.scheduler.next_tick_at()
        if self._closed or at is None or (self._timer is not None and self._timer.when() <= at):
            return
        self._disarm()
        self._timer = self._loop.call_at(at, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.scheduler.tick()


def _nobody_looks() -> None:
    """Nothing is loaded or unloaded by what waits."""
