"""Which processes should be loaded: the decision, over plain data. Whoever carries it out has all the IO.

* A model that somebody waits for and nothing serves is loaded; where something serves it but is busy, a
  further backend of it is loaded when the wait has lasted `OVERFLOW_S`.
* A group has so many places. When all are taken, room is made: by a member that nobody uses, at once; else
  by one that has been loaded for `RESIDENCE_S`. It gets no new work, and is stopped when its last lease has
  ended: a live lease is never killed for another model.
* Turns: the model whose first ticket waits longest comes first, but nothing that came before its own last
  unloading counts. So the model that has made room does not take the place back before its turn.
* What nobody has used for `idle_unload_s`, counted from the end of its last lease, is stopped.
* What an operator orders comes before all that; its patience with leases is bounded.

`plan` may be asked at any time: the same data give the same steps, and a step under way is none any more.

This module never awaits, reads no clock and holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = ["OVERFLOW_S", "RESIDENCE_S", "REST_S", "Order", "Plan", "Resident", "Stage", "Step", "plan"]

RESIDENCE_S: Final = 10.0
"""So long a loaded model that has work is left alone."""
OVERFLOW_S: Final = 2.0
REST_S: Final = 60.0
"""After this a process that was given up may be tried again, when it is asked for."""


class Stage(Enum):
    STOPPED = "stopped"
    COMING = "coming"
    LOADED = "loaded"
    LEAVING = "leaving"
    """Loaded; gets no new work because it is going to be stopped."""
    STOPPING = "stopping"
    """Told to end; its memory is not free yet."""
    FAILED = "failed"
    """Given up."""


class Order(Enum):
    LOAD = "load"
    UNLOAD = "unload"
    RESTART = "restart"


class Step(Enum):
    LOAD = "load"
    LEAVE = "leave"
    """Give it no new work."""
    STAY = "stay"
    """The reason to leave is gone: give it work again."""
    CUT = "cut"
    """End what still runs on it."""
    STOP = "stop"
    FORGET = "forget"
    """Its failure is old: it is merely stopped."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One backend. Times are seconds of any clock."""

    name: str
    stage: Stage
    since: float
    """When that stage began."""
    models: frozenset[str] = frozenset()
    by_request: bool = False
    """Whether it may be loaded because somebody waits for it: a process of ours."""
    group: str = ""
    leases: int = 0
    idle_since: float = 0.0
    """When its last lease ended."""
    idle_unload_s: float = 0.0
    """0: it is never idle enough."""
    order: Order | None = None
    order_at: float = 0.0
    order_until: float = 0.0
    """How long the order waits for leases to end."""

    @property
    def takes_room(self) -> bool:
        return self.stage not in (Stage.STOPPED, Stage.FAILED)

    @property
    def vacating(self) -> bool:
        return self.stage in (Stage.LEAVING, Stage.STOPPING)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[tuple[Step, str], ...]
    look_at: float | None
    """When time alone changes the answer."""


def plan(
    residents: Iterable[Resident], waiting: Mapping[str, float], room: Mapping[str, int], now: float
) -> Plan:
    """`waiting` says since when each model is waited for, `room` how many of each group may be loaded."""
    return _Round(tuple(residents), waiting, room, now).plan()


@dataclass(slots=True)
class _Round:
    residents: tuple[Resident, ...]
    waiting: Mapping[str, float]
    room: Mapping[str, int]
    now: float
    steps: dict[str, Step] = field(default_factory=dict)
    """One a resident at most; the next one follows when this one has shown."""
    awaited: set[str] = field(default_factory=set)
    """Those that leave, and whose place somebody waits for."""
    times: list[float] = field(default_factory=list)

    def plan(self) -> Plan:
        for resident in self.residents:
            self._obey(resident)
        wanted = self._wanted()
        for group in dict.fromkeys(resident.group for resident in wanted):
            self._place([resident for resident in wanted if resident.group == group], group)
        for resident in self.residents:
            if resident.name not in self.steps:
                self._tidy(resident)
        return Plan(tuple((step, name) for name, step in self.steps.items()), min(self.times, default=None))

    def _obey(self, resident: Resident) -> None:
        """What an order asks of a process that lives."""
        if resident.order not in (Order.UNLOAD, Order.RESTART):
            return
        if resident.stage in (Stage.COMING, Stage.LOADED):
            self._end(resident)
        elif resident.stage is Stage.LEAVING and resident.leases and self._is_time(resident.order_until):
            self.steps[resident.name] = Step.CUT

    # -- what has to be loaded

    def _wanted(self) -> list[Resident]:
        """What should be loaded and is not, those first whose turn it is."""
        turns: dict[str, tuple[bool, float]] = {}
        for resident in self.residents:
            if resident.order in (Order.LOAD, Order.RESTART) and not resident.takes_room:
                turns[resident.name] = (False, resident.order_at)
        for model, since in self.waiting.items():
            missing = self._missing(model, since)
            if missing is not None:
                turn = (True, max(since, missing.since))
                turns[missing.name] = min(turn, turns.get(missing.name, turn))
        wanted = [resident for resident in self.residents if resident.name in turns]
        return sorted(wanted, key=lambda resident: turns[resident.name])

    def _missing(self, model: str, since: float) -> Resident | None:
        """The backend to load for a model that is waited for; None if enough is there or on its way."""
        servers = [resident for resident in self.residents if model in resident.models]
        if any(server.stage is Stage.COMING for server in servers):
            return None
        stopped = [server for server in servers if server.by_request and server.stage is Stage.STOPPED]
        stopped.sort(key=lambda server: not self._has_room(server))
        if any(server.stage is Stage.LOADED and server.name not in self.steps for server in servers):
            stopped = [server for server in stopped if self._has_room(server)]
            if not stopped or not self._is_time(since + OVERFLOW_S):
                return None
        return stopped[0] if stopped else None

    def _has_room(self, resident: Resident) -> bool:
        return not resident.group or self._free_places(resident.group) > 0

    def _free_places(self, group: str) -> int:
        return self.room.get(group, 0) - sum(member.takes_room for member in self._members(group))

    def _members(self, group: str) -> list[Resident]:
        return [resident for resident in self.residents if resident.group == group]

    # -- room for it

    def _place(self, wanted: list[Resident], group: str) -> None:
        free = max(0, self._free_places(group)) if group else len(wanted)
        self.steps.update((resident.name, Step.LOAD) for resident in wanted[:free])
        needed = len(wanted) - min(free, len(wanted))
        for member in sorted(self._members(group), key=lambda member: member.stage is Stage.LEAVING):
            if needed and self._vacates(member):
                self.awaited.add(member.name)
                needed -= 1
        for _ in range(needed):
            self._make_room(group)

    def _vacates(self, member: Resident) -> bool:
        """Whether its place will be free without another step, and for others."""
        leaves = member.vacating or self.steps.get(member.name) in (Step.LEAVE, Step.STOP)
        return leaves and member.order is not Order.RESTART

    def _make_room(self, group: str) -> None:
        members = [member for member in self._members(group) if member.name not in self.steps]
        possible = [(at, member.idle_since, member) for member in members for at in self._may_go_at(member)]
        if possible:
            at, _, member = min(possible, key=lambda entry: entry[:2])
            if self._is_time(at):
                self._end(member)

    def _may_go_at(self, member: Resident) -> list[float]:
        """When it may make room for others, if at all: at any time where nobody uses it."""
        used = bool(member.leases) or self._waited_for(member)
        if member.order is not None or member.stage not in (Stage.COMING, Stage.LOADED):
            return []
        if not used:
            return [0.0]
        return [member.since + RESIDENCE_S] if member.stage is Stage.LOADED else []

    def _end(self, member: Resident) -> None:
        self.steps[member.name] = Step.LEAVE if member.leases else Step.STOP

    def _waited_for(self, member: Resident) -> bool:
        return any(model in self.waiting for model in member.models)

    # -- what nobody needs

    def _tidy(self, resident: Resident) -> None:
        match resident.stage:
            case Stage.LEAVING if resident.order is None and resident.name not in self.awaited:
                self.steps[resident.name] = Step.STAY
            case Stage.LEAVING if not resident.leases:
                self.steps[resident.name] = Step.STOP
            case Stage.FAILED if resident.by_request and self._is_time(resident.since + REST_S):
                self.steps[resident.name] = Step.FORGET
            case Stage.LOADED if resident.idle_unload_s and not resident.leases:
                idle_since = max(resident.idle_since, resident.since)
                if not self._waited_for(resident) and self._is_time(idle_since + resident.idle_unload_s):
                    self._end(resident)

    def _is_time(self, at: float) -> bool:
        if self.now < at:
            self.times.append(at)
        return self.now >= at
