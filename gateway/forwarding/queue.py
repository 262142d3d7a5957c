"""The scheduler with a timer of the event loop, so that waits time out even if nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slotgate.admission.demand import Demand
from slotgate.admission.queue_bounds import QueueLimits
from slotgate.admission.scheduler import Scheduler
from slotgate.admission.ticket import Ticket
from slotgate.gateway.streaming.alarm import Alarm

__all__ = ["AdmissionQueue"]


class AdmissionQueue:
    """Belongs to one event loop, whose clock it uses. One timer serves all tickets."""

    def __init__(self, limits: QueueLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler = Scheduler(limits, loop.time, self._arm)
        self._alarm = Alarm(loop, self._tick)
        self._observers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<AdmissionQueue {self.scheduler!r}>"

    def submit(
        self, demand: Demand, on_settled: Callable[[], None], *, before: Ticket | None = None
    ) -> Ticket:
        """Take a place in the queue; see `Scheduler.submit`. Raises `Refused`."""
        return self.scheduler.submit(demand, on_settled, before=before)

    def subscribe(self, observer: Callable[[], None]) -> None:
        """Call `observer` after every change of the queue, the leases or the pools. It must not raise."""
        self._observers.append(observer)

    def close(self) -> None:
        """Cancel the timer, and set it no more."""
        self._alarm.close()

    def _arm(self) -> None:
        """Set the timer for the scheduler's next tick. A tick that comes too early does no harm."""
        at = self.scheduler.next_tick_at()
        if at is not None:
            self._alarm.set_no_later(at)
        for observer in self._observers:
            observer()

    def _tick(self) -> None:
        self.scheduler.tick()
