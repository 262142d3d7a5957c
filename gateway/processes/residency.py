"""Decides which processes should be loaded, over plain data. `loader.py` does all the IO.

* A model is loaded when requests wait for it and no backend serves it. If a backend serves it but is busy,
  another backend of the model is loaded when the wait has lasted `OVERFLOW_S`.
* A group has a limited number of places. When all are taken, a member makes room: one that was unused for
  `linger_s`, or else one that was loaded for `keeps_s`. That member gets no new requests and is stopped when
  its last lease has ended. A live lease is never killed for another model.
* A turn pays for its load. So `keeps_s` is `LOADS_PER_TURN` times the time of the last load, or the group's
  setting if that is longer: at least four fifths of the time serve requests.
* Turns: the model whose first ticket waits longest comes first. Waiting before the model's own last unloading
  does not count, so a model that has made room does not take the place back before its turn.
* A backend that was unused for `idle_unload_s` since the end of its last lease is stopped.
* A process that was given up may be loaded again after its rest, and only if nobody uses or waits for another
  member of its group. It comes last and takes no place from a member that is used, until it has been loaded
  once. So a broken model does not take the good ones out.
* An operator's order comes before all other rules, and waits for leases for a limited time.

`plan` may be asked at any time. The same data give the same steps, and a step that is under way is not given
again. A plan also names the residents whose models wait for a place: these waits do not time out.

This module never awaits, reads no clock and holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from slotgate.gateway.backends.state import BackendFacts, ProcessState

__all__ = [
    "LOADS_PER_TURN",
    "OVERFLOW_S",
    "LoadOrder",
    "LoadingPlan",
    "Residence",
    "Resident",
    "Step",
    "plan",
    "residence_of",
]

LOADS_PER_TURN: Final = 4.0
"""A loaded model that is used keeps its place for this many times the time that its load took."""
OVERFLOW_S: Final = 2.0
"""Seconds of waiting after which a further backend of a busy model is loaded."""


class Residence(Enum):
    """The part of a backend's life that matters for memory: is its model loaded?"""

    STOPPED = "stopped"
    COMING = "coming"
    LOADED = "loaded"
    LEAVING = "leaving"
    """Loaded; gets no new requests because it is going to be stopped."""
    STOPPING = "stopping"
    """It was told to end; its memory is not free yet."""
    FAILED = "failed"
    """Given up."""


def residence_of(facts: BackendFacts) -> Residence:
    """Return the residence of a process that the gateway runs. A draining or silent process is loaded too."""
    if facts.leaving and facts.process is ProcessState.READY:
        return Residence.LEAVING  # also while its health check says that it loads
    if facts.loads:
        return Residence.COMING
    match facts.process:
        case ProcessState.STOPPED:
            return Residence.STOPPED
        case ProcessState.GIVEN_UP:
            return Residence.FAILED
        case ProcessState.STOPPING:
            return Residence.STOPPING
        case _:
            return Residence.LEAVING if facts.leaving else Residence.LOADED


class LoadOrder(Enum):
    LOAD = "load"
    UNLOAD = "unload"
    RESTART = "restart"


class Step(Enum):
    LOAD = "load"
    LEAVE = "leave"
    """Give it no new requests."""
    STAY = "stay"
    """Give it requests again, because the reason to leave is gone."""
    CANCEL = "cancel"
    """End the requests that still run on it."""
    STOP = "stop"
    FORGET = "forget"
    """Count it as stopped, because its failure is old."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A backend and its memory, as `plan` sees it. Times are seconds of any clock."""

    name: str
    residence: Residence
    since: float
    """The time when that residence began."""
    models: frozenset[str] = frozenset()
    loads_on_request: bool = False
    """True for a process that the gateway may load because requests wait for it."""
    group: str = ""
    leases: int = 0
    idle_since: float = 0.0
    """The time when its last lease ended."""
    idle_unload_s: float = 0.0
    """Seconds without a lease after which it is unloaded; 0: never."""
    keeps_s: float = 0.0
    """Seconds after loading for which it keeps its place while it is used."""
    rests_s: float = 0.0
    """Seconds after it was given up until requests may load it again."""
    has_failed: bool = False
    """True if it was given up and has not been loaded since."""
    linger_s: float = 0.0
    """Seconds for which it keeps its place after its last lease, in case its client sends another request."""
    order: LoadOrder | None = None
    order_at: float = 0.0
    order_until: float = 0.0
    """The order waits until this time for leases to end."""

    @property
    def takes_room(self) -> bool:
        return self.residence not in (Residence.STOPPED, Residence.FAILED)

    @property
    def vacating(self) -> bool:
        return self.residence in (Residence.LEAVING, Residence.STOPPING)


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    steps: tuple[tuple[Step, str], ...]
    look_at: float | None
    """The time when a new plan may differ although nothing has happened; None: never."""
    waits_for_place: frozenset[str] = frozenset()
    """Names of the residents whose models have waiting requests, and that need a place to be loaded."""


def plan(
    residents: Iterable[Resident], waiting: Mapping[str, float], room: Mapping[str, int], now: float
) -> LoadingPlan:
    """Return the next steps. `waiting`: model -> start of the wait; `room`: group -> number of places."""
    return _Round(tuple(residents), waiting, room, now).plan()


@dataclass(slots=True)
class _Round:
    residents: tuple[Resident, ...]
    waiting: Mapping[str, float]
    room: Mapping[str, int]
    now: float
    steps: dict[str, Step] = field(default_factory=dict)
    """Name of a resident -> its next step. A further step is planned once this one has taken effect."""
    awaited: set[str] = field(default_factory=set)
    """Names of the residents that leave because another one waits for their places."""
    times: list[float] = field(default_factory=list)

    def plan(self) -> LoadingPlan:
        for resident in self.residents:
            self._obey(resident)
        wanted = self._wanted()
        for group in dict.fromkeys(resident.group for resident in wanted):
            self._place([resident for resident in wanted if resident.group == group], group)
        for resident in self.residents:
            if resident.name not in self.steps:
                self._tidy(resident)
        steps = tuple((step, name) for name, step in self.steps.items())
        return LoadingPlan(steps, min(self.times, default=None), self._waits_for_place())

    def _waits_for_place(self) -> frozenset[str]:
        return frozenset(
            resident.name
            for resident in self.residents
            if resident.loads_on_request
            and self.steps.get(resident.name) is not Step.LOAD
            and resident.residence in (Residence.STOPPED, Residence.LEAVING, Residence.STOPPING)
            and self._waited_for(resident)
            and not self._stands_back(resident)
        )

    def _obey(self, resident: Resident) -> None:
        """Plan what an order asks of a process that is loaded or loading."""
        if resident.order not in (LoadOrder.UNLOAD, LoadOrder.RESTART):
            return
        if resident.residence in (Residence.COMING, Residence.LOADED):
            self._end(resident)
        elif (
            resident.residence is Residence.LEAVING
            and resident.leases
            and self._is_time(resident.order_until)
        ):
            self.steps[resident.name] = Step.CANCEL

    # -- what should be loaded

    def _wanted(self) -> list[Resident]:
        """Return the residents that should be loaded and are not, in the order of their turns."""
        turns: dict[str, tuple[bool, float]] = {}
        for resident in self.residents:
            if resident.order in (LoadOrder.LOAD, LoadOrder.RESTART) and not resident.takes_room:
                turns[resident.name] = (False, resident.order_at)
        for model, since in self.waiting.items():
            missing = self._missing(model, since)
            if missing is not None and not self._stands_back(missing):
                turn = (True, max(since, missing.since))
                turns[missing.name] = min(turn, turns.get(missing.name, turn))
        wanted = [resident for resident in self.residents if resident.name in turns]
        return sorted(wanted, key=lambda resident: turns[resident.name])

    def _missing(self, model: str, since: float) -> Resident | None:
        """Return the backend to load for a model with waiting requests; None if enough are loaded."""
        servers = [resident for resident in self.residents if model in resident.models]
        if any(server.residence is Residence.COMING for server in servers):
            return None
        stopped = [
            server for server in servers if server.loads_on_request and server.residence is Residence.STOPPED
        ]
        stopped.sort(key=lambda server: not self._has_room(server))
        if any(server.residence is Residence.LOADED and server.name not in self.steps for server in servers):
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
        for member in sorted(self._members(group), key=lambda member: member.residence is Residence.LEAVING):
            if needed and self._vacates(member):
                self.awaited.add(member.name)
                needed -= 1
        for _ in range(needed):
            self._make_room(group)

    def _vacates(self, member: Resident) -> bool:
        """Return True if its place will become free, for others, without another step."""
        leaves = member.vacating or self.steps.get(member.name) in (Step.LEAVE, Step.STOP)
        return leaves and member.order is not LoadOrder.RESTART

    def _make_room(self, group: str) -> None:
        members = [member for member in self._members(group) if member.name not in self.steps]
        possible = [(at, member.idle_since, member) for member in members for at in self._may_go_at(member)]
        if possible:
            at, _, member = min(possible, key=lambda entry: entry[:2])
            if self._is_time(at):
                self._end(member)

    def _may_go_at(self, member: Resident) -> list[float]:
        """Return a list of the time from which it may make room for others; empty if it may not."""
        used = bool(member.leases) or self._waited_for(member)
        if member.order is not None or member.residence not in (Residence.COMING, Residence.LOADED):
            return []
        if member.residence is Residence.COMING:
            return [] if used else [0.0]
        turn_is_over_at = member.since + member.keeps_s
        if used:
            return [turn_is_over_at]
        return [min(max(member.idle_since, member.since) + member.linger_s, turn_is_over_at)]

    def _stands_back(self, resident: Resident) -> bool:
        return resident.has_failed and self._disturbs(resident)

    def _disturbs(self, resident: Resident) -> bool:
        """Return True if the other members of its group that are used or waited for need all its places."""
        others = [member for member in self._members(resident.group) if member.name != resident.name]
        needed = sum(bool(member.leases) or self._waited_for(member) for member in others)
        return bool(resident.group) and needed >= self.room.get(resident.group, 0)

    def _end(self, member: Resident) -> None:
        self.steps[member.name] = Step.LEAVE if member.leases else Step.STOP

    def _waited_for(self, member: Resident) -> bool:
        return any(model in self.waiting for model in member.models)

    # -- backends that are not needed

    def _tidy(self, resident: Resident) -> None:
        match resident.residence:
            case Residence.LEAVING if resident.order is None and resident.name not in self.awaited:
                self.steps[resident.name] = Step.STAY
            case Residence.LEAVING if not resident.leases:
                self.steps[resident.name] = Step.STOP
            case Residence.FAILED if resident.loads_on_request and not self._disturbs(resident):
                if self._is_time(resident.since + resident.rests_s):
                    self.steps[resident.name] = Step.FORGET
            case Residence.LOADED if resident.idle_unload_s and not resident.leases:
                idle_since = max(resident.idle_since, resident.since)
                if not self._waited_for(resident) and self._is_time(idle_since + resident.idle_unload_s):
                    self._end(resident)

    def _is_time(self, at: float) -> bool:
        if self.now < at:
            self.times.append(at)
        return self.now >= at
