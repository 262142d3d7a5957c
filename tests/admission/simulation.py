"""A scheduler on a clock of its own, and requests that take the time they are told to take.

Nothing waits: `run` jumps from one event to the next, as the virtual-time loop does for coroutines.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from slotgate.admission import Demand, Lease, Outcome, Priority, QueueLimits, Scheduler, SlotPool, Ticket
from slotgate.admission.guesses import Guesses

ROOMY = QueueLimits(max_queue=10**6, max_queue_per_tenant=10**6, queue_timeout_s=10**9)
ONE_SLOT_S = 1.0


class WrongGuesses(Guesses):
    """Guesses that are wrong by a factor, whatever was learnt.

    There is a factor for each tenant, or one for all.
    """

    def __init__(self, factors: Mapping[str, float] | float) -> None:
        super().__init__()
        self._factors = factors

    def of(self, demand: Demand) -> float:
        factors = self._factors
        return super().of(demand) * (factors if isinstance(factors, float) else factors[demand.tenant])

    def at(self, demand: Demand, pool_name: str) -> float:
        return self.of(demand)


def ignore() -> None:
    """Do nothing. Owners pass this if they look at their tickets themselves."""


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A demand, the seconds that it takes once granted, and its state."""

    demand: Demand
    seconds: float
    then: Callable[[], object] | None = None
    ticket: Ticket = field(init=False)
    granted_at: float | None = None
    settled: int = 0

    @property
    def lease(self) -> Lease:
        assert self.ticket.lease is not None, f"not granted: {self.ticket!r}"
        return self.ticket.lease

    @property
    def granted(self) -> bool:
        return self.ticket.lease is not None


class Simulation:
    """A scheduler, its clock and its requests.

    `Simulation(SlotPool("gpu", 4))` serves the model `m`; `Simulation(a=[pool])` serves other models by name.
    """

    def __init__(
        self,
        *pools: SlotPool,
        limits: QueueLimits = ROOMY,
        on_dispatch: Callable[[], None] = ignore,
        guesses: Guesses | None = None,
        slowness: Mapping[str, float] | None = None,
        **routes: Iterable[SlotPool],
    ) -> None:
        """`slowness`: pool name -> the factor by which requests take longer there."""
        self.now = 0.0
        self._slowness = slowness or {}
        self.scheduler = Scheduler(limits, lambda: self.now, on_dispatch, guesses)
        self.served: list[SimulatedRequest] = []
        """The granted requests, in the order of their grants."""
        self._settled: list[SimulatedRequest] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.scheduler.route({"m": pools, **routes})

    def submit(
        self,
        tenant: str = "t",
        *,
        model: str = "m",
        seconds: float = ONE_SLOT_S,
        cost: float | None = None,
        width: int = 1,
        priority: Priority = Priority.INTERACTIVE,
        warmth: Mapping[str, int] | None = None,
        tokens: int = 0,
        likely_tokens: int | None = None,
        then: Callable[[], object] | None = None,
    ) -> SimulatedRequest:
        """Submit a request that costs its seconds unless `cost` is given.

        `then` is called when it has finished.
        """
        demand = Demand(
            tenant,
            model,
            width,
            seconds if cost is None else cost,
            priority,
            warmth=warmth or {},
            tokens=tokens,
            likely_tokens=likely_tokens,
        )
        request = SimulatedRequest(demand, seconds, then)
        request.ticket = self.scheduler.submit(demand, partial(self._settled.append, request))
        self._look()
        return request

    def keep_busy(self, tenant: str, **options: object) -> None:
        """Send one request after another, for ever."""
        self.submit(tenant, then=partial(self.keep_busy, tenant, **options), **options)  # type: ignore[arg-type]

    def withdraw(self, request: SimulatedRequest) -> None:
        self.scheduler.withdraw(request.ticket)
        self._look()

    def release(self, request: SimulatedRequest, outcome: Outcome = Outcome.FINISHED) -> None:
        """Release the lease now, and not when its time is over."""
        request.lease.release(outcome)
        self._look()

    def route(self, **routes: Iterable[SlotPool]) -> None:
        self.scheduler.route(routes)
        self._look()

    def dispatch(self) -> None:
        """Grant tickets after a change of a pool."""
        self.scheduler.dispatch()
        self._look()

    def at(self, when: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def run(self, seconds: float) -> None:
        """Let this many seconds pass."""
        end = self.now + seconds
        while True:
            tick_at = self.scheduler.next_tick_at()
            event_at = self._events[0][0] if self._events else None
            times = [at for at in (tick_at, event_at) if at is not None and at <= end]
            if not times:
                break
            assert min(times) >= self.now
            self.now = min(times)
            if event_at == self.now:
                heapq.heappop(self._events)[2]()
            else:
                self.scheduler.tick()
            self._look()
        self.now = end

    def run_until(self, condition: Callable[[], object], within: float = 3600.0) -> float:
        """Run until `condition()` holds. Return how long that took."""
        began = self.now
        while not condition():
            nexts = [at for at in (self.scheduler.next_tick_at(), *(e[0] for e in self._events[:1])) if at]
            assert nexts, "nothing can ever happen again"
            assert min(nexts) - began <= within, f"not within {within} s: {self.scheduler!r}"
            self.run(min(nexts) - self.now)
        return self.now - began

    def work_of(self, tenant: str) -> float:
        """Return the seconds of work that were granted to a tenant so far."""
        return sum(request.seconds for request in self.served if request.demand.tenant == tenant)

    def order(self) -> list[str]:
        """Return the tenants in the order of their grants."""
        return [request.demand.tenant for request in self.served]

    def _look(self) -> None:
        while self._settled:
            request = self._settled.pop(0)
            request.settled += 1
            if request.granted:
                request.granted_at = self.now
                self.served.append(request)
                seconds = request.seconds * self._slowness.get(request.lease.pool_name, 1.0)
                self.at(self.now + seconds, partial(self._finish, request))

    def _finish(self, request: SimulatedRequest) -> None:
        self.release(request)
        if request.then is not None:
            request.then()
