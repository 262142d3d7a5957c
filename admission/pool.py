"""The slots of one backend: how many there are, who holds them, which are not known to be idle.

    free = total - live leases - quarantined - being cleaned - foreign        (never below zero)

`total` follows the backend: shrinking evicts nobody, growing grants at once. Foreign work (of others,
on a shared backend) lowers what is free while it lasts and takes no slot away for good.

**A pool that numbers its slots** gives each lease the numbers of those it holds, so that the request can
say which slot is to serve it, and a slot that an isolated request has used is cleaned before the next one
gets it. Everybody has to say it then, or the backend would put somebody into a slot that is promised to
another. A request that cannot, or that takes several slots, of which only one can be said, gets all.

**A pool whose slots share one context** (llama-server's unified KV cache) has room for so many tokens,
whatever its slots: when it runs out, llama-server ends everything that runs. So a lease also takes the tokens
that its demand states, and one that would not fit waits. An answer without a limit would use up everything
in the end; it gets one, by what a slot's share of the context leaves it. Who needs all there is runs alone,
without one.

This module never awaits and reads no clock. It changes counts; who gets a freed slot is the scheduler's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from slotgate.admission.demand import Demand
from slotgate.admission.lease import Lease, Outcome
from slotgate.admission.quarantine import Quarantine, QuarantinedSlot, SlotProbe

__all__ = ["PoolStatus", "SlotPool"]

_SERVICE_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Counts for the status page and metrics: `total` is the sum of the next four, unless it shrank."""

    total: int
    idle: int
    leased: int
    quarantined: int
    foreign: int
    quarantined_oldest_s: float
    idle_s: float
    """Seconds since the last lease ended; 0 while one lives, however its client reads."""


class SlotPool:
    """`name` is the backend's, and the only one."""

    def __init__(self, name: str, total: int, *, shared: bool = False, admitting: bool = True) -> None:
        self.name = name
        self.total = total
        self.admitting = admitting
        """False while the backend loads, drains or fails: no grants, but running leases go on."""
        self.loading_until: float | None = None
        """While its backend loads: those who wait for it do not use up their time until then."""
        self.numbered = False
        """Whether each lease is told which slots it holds. To be set before the first one."""
        self.unclean: dict[int, float] = {}
        """Slots in which an isolated request may have left something, and since when."""
        self.on_unclean: Final[list[Callable[[], None]]] = []
        """Called when slots have to be cleaned. The cleaner calls `cleaned` for each of them."""
        self.context = 0
        """Tokens that all slots share; 0: each has a context of its own."""
        self.on_trial = False
        """One lease at a time: nobody knows whether the backend works."""
        self.leases: dict[Lease, None] = {}
        self.quarantine = Quarantine(shared=shared)
        self.foreign = 0
        self._foreign_from = 0.0
        """The time when the probe left that showed the foreign work."""
        self.unverified = 0
        """Counts the slots that were freed by `expire`, without an answer that shows them idle."""
        self.service_s: float | None = None
        """Smoothed duration of a lease in seconds, from grant to release; None before the first."""
        self.idle_since = 0.0
        """When the last lease ended: what idle logic looks at, and not at responses that are still open."""
        self.on_idle: Final[list[Callable[[], None]]] = []
        """Called when the last live lease has ended."""
        self.released: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.on_quarantine: Final[list[Callable[[], None]]] = []
        """Called when slots have to be verified. Without a prober quarantined slots stay out."""
        self._trying: Lease | None = None
        """The one that was granted on trial."""
        self._used: OrderedDict[int, None] = OrderedDict()
        """The numbers of its slots, the one that was used longest ago first."""
        self._leased = 0
        self._ours_at_most = 0
        """Slots that leases held when the last probe left, or were granted since."""

    def __repr__(self) -> str:
        return (
            f"<SlotPool {self.name} {self._leased}/{self.total} leased, {len(self.quarantine)} quarantined>"
        )

    @property
    def leased(self) -> int:
        """Slots held by live leases."""
        return self._leased

    @property
    def free(self) -> int:
        if self.on_trial and self._trying is not None:
            return 0
        return max(0, self.total - self._leased - self.withheld - self.foreign)

    @property
    def withheld(self) -> int:
        """Slots that nobody has and nobody gets: not known to be idle, or not clean."""
        return len(self.quarantine) + len(self.unclean)

    def width_of(self, demand: Demand) -> int:
        """How many slots a lease for it holds here."""
        exact = not self.numbered or (demand.width == 1 and demand.numbered)
        return demand.width if exact else max(self.total, demand.width)

    @property
    def room(self) -> int:
        """Tokens of a shared context that nobody holds; below zero when it shrank."""
        held = sum(lease.tokens for lease in self.leases)
        return self.context - held - sum(slot.tokens for slot in self.quarantine.slots)

    def tokens_of(self, demand: Demand) -> int:
        """What a lease for it takes of a shared context: never more than there is, for then it runs alone."""
        if not (self.context and demand.open_ended):
            return min(demand.tokens, self.context)
        share = self.context * self.width_of(demand) // max(1, self.total)
        return min(max(share, demand.tokens + share // 2), self.context)

    def answer_limit(self, demand: Demand) -> int | None:
        """What is left of these tokens for each answer, where nothing else limits it."""
        tokens = self.tokens_of(demand)
        if not demand.open_ended or tokens == self.context:
            return None
        return max(1, (tokens - demand.tokens) // demand.width)

    def has_room(self, demand: Demand) -> bool:
        """Whether only a slot is missing, if anything is."""
        return not self.context or self.tokens_of(demand) <= self.room

    def fits(self, demand: Demand) -> bool:
        return self.width_of(demand) <= self.free and self.has_room(demand)

    def take(self, lease: Lease) -> None:
        lease.tokens = self.tokens_of(lease.demand)
        lease.answer_limit = self.answer_limit(lease.demand)
        if self.numbered:
            lease.slots = tuple(sorted(self._free_numbers(lease.demand)[: lease.width]))
        self.leases[lease] = None
        self._trying = lease if self.on_trial else None
        self._leased += lease.width
        self._ours_at_most += lease.width

    def give_back(self, lease: Lease, now: float) -> None:
        """A lease has ended; its slots are idle or quarantined, as its outcome says."""
        del self.leases[lease]
        for number in lease.slots:
            self._used[number] = None
            self._used.move_to_end(number)
        if lease is self._trying:
            self._trying = None
        self._leased -= lease.width
        assert lease.outcome is not None
        self.released[lease.outcome] += 1
        if not lease.outcome.verified:
            self.quarantine.add(lease, now, total=self.total)
            _call(self.on_quarantine)
        elif lease.demand.isolated and lease.outcome is not Outcome.UNUSED:
            self._clean(lease.slots, now)
        if lease.outcome is Outcome.FINISHED:
            took = now - lease.granted_at
            smoothed = self.service_s if self.service_s is not None else took
            self.service_s = smoothed + _SERVICE_SMOOTHING * (took - smoothed)
        if not self.leases:
            self.idle_since = now
            _call(self.on_idle)

    def probe_sent(self, now: float) -> SlotProbe:
        self._ours_at_most = self._leased
        return self.quarantine.sent(now, self.leases)

    def probe_answered(
        self,
        probe: SlotProbe,
        running: frozenset[Hashable] | None,
        now: float,
        busy: Collection[int] = (),
    ) -> int:
        """`running` names the tasks that the backend was working on, in the slots `busy`; None if that stays
        unknown.

        To be called `SETTLE_S` after the answer came. Returns how many slots have left the quarantine.
        """
        returned = self.quarantine.answered(probe, running, now, total=self.total, busy=busy)
        self._left(returned, now)
        if running is not None:
            ours = self._ours_at_most + self.quarantine.closed_before(probe)
            self.foreign = max(0, len(running) - ours)
            self._foreign_from = probe.sent_at
        return len(returned)

    def expires_at(self, max_s: float) -> float | None:
        """Return the time at which `expire` has an effect; None if nothing is in doubt."""
        slots_at = self.quarantine.expires_at(max_s)
        foreign_at = self._foreign_from + max_s if self.foreign else None
        return min((at for at in (slots_at, foreign_at) if at is not None), default=None)

    def expire(self, now: float, max_s: float) -> int:
        """Free the slots of which the backend has shown nothing for `max_s` seconds.

        Foreign work ends in the same way: an old answer does not lower the capacity for ever. Returns the
        number of slots that have left the quarantine.
        """
        if self.foreign and now >= self._foreign_from + max_s:
            self.foreign = 0
        returned = self.quarantine.expire(now, max_s)
        self._left(returned, now)
        self.unverified += len(returned)
        return len(returned)

    def cleaned(self, number: int) -> None:
        """Nothing of an isolated request is left in this slot."""
        self.unclean.pop(number, None)
        self._used.pop(number, None)

    def restarted(self) -> None:
        """The backend is a new process: whatever its slots were busy with is gone."""
        self.quarantine.clear()
        self.unclean.clear()
        self.foreign = 0

    def next_probe_at(self) -> float | None:
        return self.quarantine.next_probe_at(foreign=self.foreign)

    def status(self, now: float) -> PoolStatus:
        return PoolStatus(
            total=self.total,
            idle=self.free,
            leased=self._leased,
            quarantined=self.withheld,
            foreign=self.foreign,
            quarantined_oldest_s=max(
                self.quarantine.oldest_age_s(now), now - min(self.unclean.values(), default=now)
            ),
            idle_s=0.0 if self.leases else now - self.idle_since,
        )

    def _free_numbers(self, demand: Demand) -> list[int]:
        """The one that holds most of the prompt comes first, then what is empty or was used longest ago."""
        taken = {number for lease in self.leases for number in lease.slots}
        taken.update(slot.number for slot in self.quarantine.slots if slot.number is not None)
        free = set(range(self.total)) - taken - self.unclean.keys()
        warm = demand.warm_slots.get(self.name)
        empty = (number for number in sorted(free) if number not in self._used)
        order = [*empty, *(number for number in self._used if number in free)]
        return sorted(order, key=lambda number: number != warm)

    def _left(self, returned: Iterable[QuarantinedSlot], now: float) -> None:
        self._clean((slot.number for slot in returned if slot.isolated), now)

    def _clean(self, numbers: Iterable[int | None], now: float) -> None:
        left = [number for number in numbers if number is not None]
        if left:
            self.unclean.update(dict.fromkeys(left, now))
            _call(self.on_unclean)


def _call(observers: list[Callable[[], None]]) -> None:
    for observer in tuple(observers):
        observer()
