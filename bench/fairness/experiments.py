"""Four experiments with many tenants, each run on the gateway's own scheduler and virtual time.

There is no clock, no network and no chance: random sizes come from a seed, so every run gives the same
figures. Work is counted in tokens; a slot generates `RATE` tokens per second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.instructions import counted
from slotgate.admission import Priority, SlotPool
from tests.admission.simulation import SimulatedRequest, Simulation, WrongGuesses

__all__ = [
    "CROWD",
    "SLOTS",
    "Arrival",
    "Batch",
    "Queue",
    "Shares",
    "Tenant",
    "batch",
    "newcomers",
    "queues",
    "shares",
]

SLOTS = 2
RATE = 50.0
CROWD = 1000
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    weight: float
    tokens: int
    """Mean size of a request. Sizes are between half and one and a half times the mean."""
    misjudged: float = 1.0
    """The estimated cost of a request as a multiple of its real cost."""


TENANTS = (
    Tenant("a", 1, 400),
    Tenant("b", 2, 2000, misjudged=0.25),
    Tenant("c", 4, 100, misjudged=4.0),
    Tenant("d", 3, 800, misjudged=0.5),
    Tenant("e", 1.5, 3200, misjudged=2.0),
)
"""The tenants. Each experiment uses the first of them: two, three, and so on."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each tenant in all tokens, at the ends of equal spans of time."""

    tenants: tuple[Tenant, ...]
    hours: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]
    """The shares of each tenant at `hours`, of all tokens since the start."""

    def due(self, tenant: Tenant) -> float:
        return tenant.weight / sum(other.weight for other in self.tenants)

    @property
    def off_by(self) -> float:
        """The largest relative deviation of a tenant from its due share, at the end."""
        ends = zip(self.tenants, self.parts, strict=True)
        return max(abs(part[-1] / self.due(tenant) - 1) for tenant, part in ends)


class _Backlog:
    """A tenant that always has requests waiting."""

    def __init__(self, simulation: Simulation, tenant: Tenant, chance: random.Random) -> None:
        self.simulation = simulation
        self.tenant = tenant
        self.chance = chance
        self.asked: list[tuple[SimulatedRequest, float]] = []
        for _ in range(2 * SLOTS):
            self.ask()

    def ask(self) -> None:
        tokens = self.tenant.tokens * self.chance.uniform(0.5, 1.5)
        request = self.simulation.submit(self.tenant.name, seconds=tokens / RATE, then=self.ask)
        self.asked.append((request, tokens))

    def made_by(self, now: float) -> float:
        """Tokens so far, including those of running requests."""
        return sum(
            tokens * min(1.0, (now - request.granted_at) / request.seconds)
            for request, tokens in self.asked
            if request.granted_at is not None
        )


def shares(count: int, *, hours: float = 8, points: int = 64) -> Shares:
    """Run the first `count` tenants; all of them always have requests waiting."""
    tenants = TENANTS[:count]
    guesses = WrongGuesses({tenant.name: tenant.misjudged for tenant in tenants})
    simulation = Simulation(SlotPool("gpu", SLOTS), guesses=guesses)
    simulation.scheduler.set_weights({tenant.name: tenant.weight for tenant in tenants})
    backlogs = [_Backlog(simulation, tenant, random.Random(tenant.name)) for tenant in tenants]
    at, parts = [], []
    for number in range(1, points + 1):
        simulation.run(hours * HOUR_S / points)
        made = [backlog.made_by(simulation.now) for backlog in backlogs]
        at.append(hours * number / points)
        parts.append([tokens / sum(made) for tokens in made])
    return Shares(tenants, tuple(at), tuple(zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A newcomer behind `CROWD` requests of another tenant.

    Waits are in service times of the longest request.
    """

    slots: int
    waits: tuple[float, ...]
    """The waits of newcomers that arrived at different moments."""
    in_line: float
    """The longest wait if requests were served first come, first served."""


def newcomers(slots: int, *, hooks: int = 25, longest_s: float = 20.0) -> Arrival:
    waits, in_line = [], []
    for moment in range(hooks):
        chance, simulation = random.Random(moment), Simulation(SlotPool("gpu", slots))
        crowd = [
            simulation.submit("crowd", seconds=longest_s * chance.uniform(0.25, 1)) for _ in range(CROWD)
        ]
        simulation.run(longest_s * (1 + moment / hooks))
        newcomer = simulation.submit("newcomer", seconds=longest_s)
        waiting = sum(request.seconds for request in crowd if not request.granted)
        in_line.append(waiting / slots / longest_s)
        waits.append(simulation.run_until(lambda: newcomer.granted) / longest_s)  # noqa: B023
    return Arrival(slots, tuple(waits), max(in_line))


@dataclass(frozen=True, slots=True)
class Batch:
    """The service of a batch tenant and of interactive tenants that never pause."""

    minutes: tuple[float, ...]
    interactive: tuple[int, ...]
    """Requests served up to each of `minutes`."""
    batch: tuple[int, ...]
    widest_gap: int
    """The largest number of requests from one batch request to the next, counting the latter."""


def batch(*, chatting: int = 4, minutes: int = 60, points: int = 30) -> Batch:
    simulation = Simulation(SlotPool("gpu", SLOTS))
    for number in range(chatting):
        simulation.keep_busy(f"chat{number}", seconds=8.0)
    for _ in range(CROWD):
        simulation.submit("batch", seconds=8.0, priority=Priority.BATCH)
    at, interactive, served = [], [], []
    for number in range(1, points + 1):
        simulation.run(minutes * 60 / points)
        order = simulation.order()
        at.append(minutes * number / points)
        served.append(order.count("batch"))
        interactive.append(len(order) - served[-1])
    turns = [turn for turn, tenant in enumerate(simulation.order()) if tenant == "batch"]
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    return Batch(tuple(at), tuple(interactive), tuple(served), max(gaps))


@dataclass(frozen=True, slots=True)
class Queue:
    """The cost of one request for the scheduler with `waiting` requests in the queue."""

    tenants: str
    waiting: int
    instructions: float
    calls: float
    """Calls of functions written in C."""


@dataclass(slots=True)
class _Waiting:
    """A scheduler with two slots, both in use, and a queue."""

    count: int
    own_tenants: bool
    simulation: Simulation = field(default_factory=lambda: Simulation(SlotPool("gpu", SLOTS)))
    requests: list[SimulatedRequest] = field(default_factory=list)

    def fill(self) -> None:
        for _ in range(SLOTS):
            self.simulation.submit("first")
        self.requests = [self.submit(number) for number in range(self.count)]

    def submit(self, number: int) -> SimulatedRequest:
        return self.simulation.submit(f"t{number}" if self.own_tenants else "t", seconds=1.0 + number % 7)

    def turn(self, number: int) -> None:
        """Withdraw a request from the middle, submit two others, and serve one.

        The queue keeps its length.
        """
        middle = len(self.requests) // 2
        self.simulation.withdraw(self.requests[middle])
        self.requests[middle] = self.submit(number)
        self.submit(number)
        self.simulation.release(self.simulation.served[number])


def queues(sizes: Sequence[int] = (10, 10_000), *, rounds: int = 100) -> list[Queue]:
    return [_queue(size, own, rounds) for own in (False, True) for size in sizes]


def _queue(size: int, own_tenants: bool, rounds: int) -> Queue:
    waiting = _Waiting(size, own_tenants)
    waiting.fill()
    act: Callable[[int], None] = waiting.turn
    with counted() as counts:
        for number in range(rounds):
            act(number)
    tenants = "a tenant each" if own_tenants else "one tenant"
    return Queue(tenants, size, counts["opcode"] / rounds, counts["c_call"] / rounds)
