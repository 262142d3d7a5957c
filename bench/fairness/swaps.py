"""Two models share one place in memory: the part of the time that serves requests, and the refused ones.

The gateway's own scheduler and its own `residency.plan` run on virtual time. Only the loading is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bench.fairness.promise import Promise
from slotgate.admission import QueueLimits, Refusal, SlotPool
from slotgate.gateway.processes.residency import LOADS_PER_TURN, Residence, Resident, Step, plan
from tests.admission.simulation import Simulation

__all__ = ["swap_promises"]

_LIMITS = QueueLimits(max_queue=256, max_queue_per_tenant=64, queue_timeout_s=60.0)
_SLOTS = 4
_RESIDENCE_S = 10.0
_LINGER_S = 1.0
_LONGEST_WAIT_S = 3600.0


def swap_promises() -> Iterable[Promise]:
    for load_s in (30.0, 60.0):
        yield from _two_busy_models(load_s)
    yield _two_agents()
    yield _long_stream()


@dataclass(slots=True)
class _Model:
    pool: SlotPool
    load_s: float
    resident: Resident
    loads: int = 0


@dataclass(slots=True)
class _Swaps:
    """A group with one place. `load_s`: model -> seconds that its load takes."""

    load_s: dict[str, float]
    simulation: Simulation = field(init=False)
    models: dict[str, _Model] = field(init=False)
    _look_is_due: bool = True
    """True while a look at the residents is due, or the simulation is still being made."""

    def __post_init__(self) -> None:
        self.models = {
            name: _Model(
                SlotPool(name, _SLOTS, admitting=False),
                load_s,
                Resident(
                    name,
                    Residence.STOPPED,
                    0.0,
                    models=frozenset({name}),
                    loads_on_request=True,
                    group="gpu",
                    linger_s=_LINGER_S,
                ),
            )
            for name, load_s in self.load_s.items()
        }
        self.simulation = Simulation(limits=_LIMITS, on_dispatch=self._changed)
        self.simulation.route(**self._routes())
        self._look_is_due = False

    def _routes(self) -> dict[str, list[SlotPool]]:
        return {name: [model.pool] for name, model in self.models.items()}

    def keep_asking(self, model: str, seconds: float, pause_s: float) -> None:
        """Send the next request of a client `pause_s` after each answer or refusal."""
        request = self.simulation.submit(
            f"tenant of {model}",
            model=model,
            seconds=seconds,
            then=lambda: self.simulation.at(
                self.simulation.now + pause_s, lambda: self.keep_asking(model, seconds, pause_s)
            ),
        )

        def look() -> None:
            if request.ticket.refusal is not None:
                self.keep_asking(model, seconds, pause_s)
            elif request.ticket.queued:
                self.simulation.at(self.simulation.now + 1.0, look)

        look()

    def useful(self, seconds: float) -> float:
        """Return the part of the slots' time until now that served requests."""
        return sum(self.simulation.scheduler.slot_seconds.values()) / (_SLOTS * seconds)

    @property
    def refused(self) -> int:
        return self.simulation.scheduler.refused[Refusal.QUEUE_TIMEOUT]

    @property
    def loads(self) -> int:
        return sum(model.loads for model in self.models.values())

    def _changed(self) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            self.simulation.at(self.simulation.now, self._carry_out)

    def _carry_out(self) -> None:
        self._look_is_due = False
        simulation = self.simulation
        residents = [
            replace(model.resident, leases=len(model.pool.leases), idle_since=model.pool.idle_since)
            for model in self.models.values()
        ]
        planned = plan(residents, simulation.scheduler.waiting_since(), {"gpu": 1}, simulation.now)
        for step, name in planned.steps:
            self._do(step, self.models[name])
        changed = bool(planned.steps)
        for name, model in self.models.items():
            waits = name in planned.waits_for_place
            if model.resident.residence is not Residence.COMING and waits is (
                model.pool.loading_until is None
            ):
                model.pool.loading_until = simulation.now + _LONGEST_WAIT_S if waits else None
                changed = True
        if changed:
            simulation.route(**self._routes())
        if planned.look_at is not None:
            simulation.at(planned.look_at, self._carry_out)

    def _do(self, step: Step, model: _Model) -> None:
        now = self.simulation.now
        match step:
            case Step.LOAD:
                self._become(model, Residence.COMING)
                model.loads += 1
                model.pool.loading_until = now + model.load_s + 300.0
                self.simulation.at(now + model.load_s, lambda: self._loaded(model))
            case Step.LEAVE:
                self._become(model, Residence.LEAVING)
            case Step.STAY:
                self._become(model, Residence.LOADED)
            case Step.STOP:
                self._become(model, Residence.STOPPED)
            case _:
                raise AssertionError(step)

    def _loaded(self, model: _Model) -> None:
        if model.resident.residence is Residence.COMING:
            keeps_s = max(_RESIDENCE_S, LOADS_PER_TURN * model.load_s)
            model.resident = replace(model.resident, keeps_s=keeps_s)
            model.pool.loading_until = None
            self._become(model, Residence.LOADED)
            self.simulation.route(**self._routes())

    def _become(self, model: _Model, residence: Residence) -> None:
        stays = residence is Residence.LOADED and model.resident.residence is Residence.LEAVING
        since = model.resident.since if stays else self.simulation.now
        model.resident = replace(model.resident, residence=residence, since=since)
        model.pool.admitting = residence is Residence.LOADED


def _two_busy_models(load_s: float) -> list[Promise]:
    swaps = _Swaps({"a": load_s, "b": load_s})
    for model in swaps.models:
        for _ in range(8):
            swaps.keep_asking(model, seconds=2.0, pause_s=0.1)
    swaps.simulation.run(3600.0)
    crowd = f"two busy models on one place, {load_s:g} s to load"
    return [
        Promise(crowd, "part of the slots' time that serves", 0.7, 0.8, swaps.useful(3600.0)),
        Promise(crowd, "requests refused in an hour", 0, 0, swaps.refused),
    ]


def _two_agents() -> Promise:
    swaps = _Swaps({"a": 10.0, "b": 10.0})
    for model in swaps.models:
        swaps.keep_asking(model, seconds=2.0, pause_s=0.2)
    swaps.simulation.run(600.0)
    return Promise(
        crowd="two agents with pauses of 0.2 s on two models, one place",
        figure="loads per request",
        least=0,
        most=0.1,
        result=swaps.loads / len(swaps.simulation.served),
    )


def _long_stream() -> Promise:
    swaps = _Swaps({"a": 10.0, "b": 10.0})
    swaps.simulation.submit(model="a", seconds=900.0)
    swaps.simulation.run(20.0)
    waits = swaps.simulation.submit(model="b", seconds=1.0)
    swaps.simulation.run(1000.0)
    return Promise(
        crowd="a model streams for 15 minutes on the only place",
        figure="requests for the other model that are served",
        least=1,
        most=1,
        result=int(waits.granted),
    )
