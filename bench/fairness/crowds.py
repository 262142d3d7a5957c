"""Crowds as gateways see them, over the first minutes: each with a promise and the figure that came of it.

All run on virtual time with the gateway's own scheduler, as the other experiments do.
"""

from __future__ import annotations

from bench.fairness.arrays import array_promises
from bench.fairness.promise import Promise
from bench.fairness.swaps import swap_promises
from slotgate.admission import Demand, Priority, QueueLimits, Refused, SlotPool
from tests.admission.simulation import Simulation, WrongGuesses, ignore

__all__ = ["promises"]

_TIMEOUT = QueueLimits(max_queue=256, max_queue_per_tenant=64, queue_timeout_s=60.0)


def promises() -> tuple[Promise, ...]:
    return (
        *(_newcomer(factor) for factor in (0.01, 1.0, 1000.0)),
        _returning_tenant(),
        _burst(),
        *_kinds_of_work(),
        *_batch(),
        _says_batch(),
        *_wide(),
        *array_promises(),
        _places(),
        _several_pools(),
        *_fast_and_slow(),
        *_shared_context(),
        *swap_promises(),
    )


def _share(simulation: Simulation, tenant: str) -> float:
    """Return a tenant's part of all slot time."""
    everything = sum(simulation.scheduler.slot_seconds.values())
    return simulation.scheduler.slot_seconds[tenant] / everything


def _newcomer(factor: float) -> Promise:
    simulation = Simulation(SlotPool("gpu", 4), guesses=WrongGuesses(factor))
    for _ in range(300):
        simulation.submit("crowd")
    simulation.run(15.0)
    before = len(simulation.served)
    for _ in range(80):
        simulation.submit("newcomer")
    simulation.run(30.0)
    got = simulation.order()[before : before + 80].count("newcomer")
    return Promise(
        f"150 requests wait, a newcomer posts 80; guesses are wrong by × {factor:g}",
        "of the next 80 places, the newcomer's",
        36,
        44,
        got,
    )


def _returning_tenant() -> Promise:
    simulation = Simulation(SlotPool("gpu", 2))
    simulation.submit("returns")
    for _ in range(8):
        simulation.keep_busy("stays")
    simulation.run(3600.0)
    before = simulation.work_of("returns")
    for _ in range(120):
        simulation.submit("returns")
    simulation.run(60.0)
    share = (simulation.work_of("returns") - before) / 120
    return Promise("a tenant comes back after an hour", "its share of the next minute", 0.45, 0.55, share)


def _burst() -> Promise:
    simulation = Simulation(SlotPool("gpu", 2))
    waits: list[float] = []

    def chat() -> None:
        asked_at = simulation.now

        def answered() -> None:
            assert request.granted_at is not None
            waits.append(request.granted_at - asked_at)
            simulation.at(simulation.now + 2.0, chat)

        request = simulation.submit("chat", seconds=1.0, then=answered)

    chat()
    for at in (60.0, 120.0, 180.0):
        for _ in range(50):
            simulation.at(at, lambda: simulation.submit("bursts", seconds=5.0))
    simulation.run(400.0)
    return Promise(
        "bursts of 50 requests of 5 s beside one chat client", "its longest wait in s", 0, 5.0, max(waits)
    )


def _kinds_of_work() -> list[Promise]:
    """Run tenants with different kinds of work: a kind is a time per request and a number of clients."""
    kinds = {"agent": (1.6, 8), "chat": (6.0, 8), "completion": (0.3, 8), "embeddings": (0.05, 16)}
    simulation = Simulation(SlotPool("gpu", 4))
    for tenant, (seconds, clients) in kinds.items():
        for _ in range(clients):
            simulation.keep_busy(tenant, seconds=seconds, cost=30_000.0 if tenant == "agent" else 200.0)
    simulation.run(600.0)
    return [
        Promise(
            "agent with 30,000 cached tokens, chat, completion and embeddings",
            f"{tenant}'s share of the slot time",
            0.22,
            0.28,
            _share(simulation, tenant),
        )
        for tenant in kinds
    ]


def _batch() -> list[Promise]:
    simulation = Simulation(SlotPool("gpu", 4))
    waits: list[float] = []

    def chat() -> None:
        asked_at = simulation.now

        def answered() -> None:
            assert request.granted_at is not None
            waits.append(request.granted_at - asked_at)
            chat()

        request = simulation.submit("chat", seconds=1.0, then=answered)

    for _ in range(30):
        chat()
    for _ in range(8):
        simulation.keep_busy("batch", seconds=50.0, priority=Priority.BATCH)
    simulation.run(3600.0)
    crowd = "batch of 50 s beside 30 interactive clients of 1 s"
    return [
        Promise(crowd, "batch's share of the slot time", 0.09, 0.13, _share(simulation, "batch")),
        Promise(crowd, "median wait of interactive in s", 0, 10, sorted(waits)[len(waits) // 2]),
    ]


def _says_batch() -> Promise:
    simulation = Simulation(SlotPool("gpu", 4))
    for number in range(12):
        for _ in range(4):
            priority = Priority.BATCH if number == 0 else Priority.INTERACTIVE
            simulation.keep_busy(f"t{number}", seconds=4.0, priority=priority)
    simulation.run(3600.0)
    share = _share(simulation, "t0")
    return Promise("one of 12 equal tenants says batch", "its share, due 0.083", 0.005, 0.083, share)


def _wide() -> list[Promise]:
    def crowd(*, wide: bool) -> tuple[int, float]:
        simulation = Simulation(SlotPool("gpu", 4), limits=_TIMEOUT)
        waits: list[float] = []

        def chat() -> None:
            asked_at = simulation.now

            def answered() -> None:
                assert request.granted_at is not None
                waits.append(request.granted_at - asked_at)
                simulation.at(simulation.now + 0.01, chat)

            request = simulation.submit("chat", seconds=1.0, then=answered)

        def ask_widely() -> None:
            request = simulation.submit("wide", width=4)

            def look() -> None:
                if request.ticket.queued:
                    simulation.at(simulation.now + 0.5, look)
                else:
                    ask_widely()

            simulation.at(simulation.now + 0.5, look)

        simulation.submit("stream", seconds=10_000.0)
        for _ in range(3):
            chat()
        if wide:
            simulation.at(10.0, ask_widely)
        simulation.run(610.0)
        return len(waits), max(waits)

    name = "a stream, three chat clients, and one that asks for n = 4 in a loop"
    (alone, _), (beside, longest) = crowd(wide=False), crowd(wide=True)
    return [
        Promise(name, "chat answers, as a part of those without it", 0.9, 1.0, beside / alone),
        Promise(name, "longest wait of chat in s", 0, 2.0, longest),
    ]


def _places() -> Promise:
    simulation = Simulation(SlotPool("gpu", 1), limits=_TIMEOUT)
    simulation.submit("running", seconds=500.0)
    for number in range(256):
        demand = Demand(f"flood{number % 4}", "m", body_bytes=2**20)
        simulation.scheduler.submit(demand, ignore)
    kept = 0
    for _ in range(20):
        try:
            kept += simulation.scheduler.submit(Demand("other", "m", body_bytes=2**20), ignore).queued
        except Refused:
            continue
    return Promise("four tenants fill the queue, a fifth posts 20", "of the 20, taken", 20, 20, kept)


def _several_pools() -> Promise:
    both, shared = SlotPool("both", 2), SlotPool("shared", 2)
    simulation = Simulation(wide=[both, shared], narrow=[shared])
    for _ in range(12):
        simulation.keep_busy("two backends", model="wide")
        simulation.keep_busy("one backend", model="narrow")
    simulation.run(600.0)
    share = _share(simulation, "one backend")
    return Promise(
        "one tenant's model is on two backends, the other's on one", "its share", 0.47, 0.53, share
    )


def _fast_and_slow() -> list[Promise]:
    """Two backends of one model: a request takes 1 s on one and 20 s on the other. The slow one is freer."""
    simulation = Simulation(SlotPool("fast", 2), SlotPool("slow", 4), slowness={"slow": 20.0})
    took: list[float] = []

    def ask(pause_s: float) -> None:
        asked_at = simulation.now

        def answered() -> None:
            took.append(simulation.now - asked_at)
            simulation.at(simulation.now + pause_s, lambda: ask(pause_s))

        simulation.submit("chat", seconds=1.0, then=answered)

    ask(1.0)
    simulation.run(600.0)
    low = sum(took[2:]) / len(took[2:])
    for _ in range(12):
        simulation.keep_busy("crowd", seconds=1.0)
    before = len(simulation.served)
    simulation.run(600.0)
    slow = [request.lease.pool_name for request in simulation.served[before:]].count("slow")
    crowd = "a backend that takes 1 s for a request and one that takes 20 s"
    return [
        Promise(crowd, "mean time of an answer at low load in s", 1.0, 1.2, low),
        Promise(crowd, "requests a minute of the slow one's 4 slots at full load", 11, 12, slow / 10),
    ]


def _shared_context() -> list[Promise]:
    """Agents send 8,000 tokens, ask for 32,000 and take 500. Earlier answers were as long."""

    pool = SlotPool("gpu", 4)
    pool.context = 65_536
    simulation = Simulation(pool, limits=_TIMEOUT)
    for number in range(8):
        simulation.keep_busy(f"agent{number}", seconds=12.0, tokens=40_000, likely_tokens=8_657)
    simulation.run(3600.0)
    busy = sum(simulation.scheduler.slot_seconds.values()) / 3600
    crowd = "a context of 65,536 tokens for 4 slots, agents with max_tokens = 32,000"
    return [
        Promise(crowd, "slots busy", 3.9, 4.0, busy),
        Promise(crowd, "time-outs in an hour", 0, 0, simulation.scheduler.refused.total()),
    ]
