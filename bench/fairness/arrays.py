"""Arrays of inputs beside chat: the gateway asks for them piece by piece, with one slot each.

The same arrays as requests of all four slots gave chat 34 answers a minute and waits of 5 s, because the
slots have to be free together. Times vary by half around their averages.
"""

from __future__ import annotations

from random import Random

from bench.fairness.promise import Promise
from slotgate.admission import QueueLimits, SlotPool
from tests.admission.simulation import Simulation

__all__ = ["array_promises"]

_INPUTS = 64
_INPUT_S = 0.25
_CHAT_S = 1.0
_SLOTS = 4
_CHATS = 3
_MINUTES = 10
_LIMITS = QueueLimits(max_queue=256, max_queue_per_tenant=64, queue_timeout_s=60.0)


def array_promises() -> list[Promise]:
    simulation = Simulation(SlotPool("gpu", _SLOTS), limits=_LIMITS)
    random = Random(1)
    waits: list[float] = []
    inputs = [0]

    def chat() -> None:
        asked_at = simulation.now

        def answered() -> None:
            assert request.granted_at is not None
            waits.append(request.granted_at - asked_at)
            simulation.at(simulation.now + 0.01, chat)

        request = simulation.submit("chat", seconds=_CHAT_S * random.uniform(0.5, 1.5), then=answered)

    def worker() -> None:
        def answered() -> None:
            inputs[0] += 1
            pause_s = 0.01 if inputs[0] % _INPUTS == 0 else 0.0
            simulation.at(simulation.now + pause_s, worker)

        simulation.submit("arrays", seconds=_INPUT_S * random.uniform(0.5, 1.5), then=answered)

    for _ in range(_CHATS):
        chat()
    for _ in range(_SLOTS):
        worker()
    simulation.run(60.0 * _MINUTES)
    name = "three chat clients, and one that posts arrays of 64 inputs in a loop"
    return [
        Promise(name, "chat answers a minute, due 120", 114, 130, len(waits) / _MINUTES),
        Promise(name, "longest wait of chat in s", 0, 1.5, max(waits)),
        Promise(name, "inputs a minute, due 480", 460, 500, inputs[0] / _MINUTES),
    ]
