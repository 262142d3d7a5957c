"""Counts the slots of one backend: those leased, in quarantine, being cleaned, and used by others.

    free = total - live leases - quarantined - being cleaned - foreign        (never below zero)

`total` follows the backend. If it shrinks, running leases keep their slots; if it grows, the new slots are
granted at once. Foreign work, which other programs send to a shared backend, lowers `free` only while it
lasts.

**A pool that numbers its slots** gives each lease the numbers of its slots, and the request names its slot to
the backend (`id_slot`). So a slot that an isolated request has used can be cleaned before its next use. Then
every request must name a slot; otherwise the backend could put it into the slot of another lease. A request
can name one slot only. So a request that cannot name a slot, or needs several, gets the whole pool.

**A pool whose slots share one context** has room for a number of tokens (`admission.shared_context`). An
answer without a limit would use up all room in the end, so it gets a limit: a slot's share of the context,
minus the prompt. A request that needs the whole context runs alone and without a limit.

This module never awaits and reads no clock. It only counts; the scheduler decides which ticket gets a freed
slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from slotgate.admission.demand import Demand
from slotgate.admission.lease import Lease, Outcome
from slotgate.admission.quarantine import Quarantine, QuarantinedSlot, SlotProbe
from slotgate.admission.shared_context import ContextNeed, fits, overgrown, room

__all__ = ["PoolStatus", "SlotPool"]

_SERVICE_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Counts for the status page and metrics. `total` is the sum of the next four, unless the pool shrank."""

    total: int
    idle: int
    leased: int
    quarantined: int
    foreign: int
    quarantined_oldest_s: float
    idle_s: float
    """Seconds since the last lease ended; 0 while a lease lives."""


class SlotPool:
    """The slots of one backend. `name` is the name of the backend, and unique."""

    def __init__(self, name: str, total: int, *, shared: bool = False, admitting: bool = True) -> None:
        self.name = name
        self.total = total
        self.admitting = admitting
        """False while the backend loads, drains or fails: no grants, but running leases go on."""
        self.loading_until: float | None = None
        """The time until which waits do not count, as the backend loads or waits for a place; else None."""
        self.numbered = False
        """True if each lease gets the numbers of its slots. Must be set before the first lease."""
        self.unclean: dict[int, float] = {}
        """Slot id -> the time since which the slot holds traces of an isolated request."""
        self.on_unclean: Final[list[Callable[[], None]]] = []
        """Observers, called when slots have to be cleaned. The cleaner calls `cleaned` for each of them."""
        self.context = 0
        """The tokens that all slots share; 0 if each slot has a context of its own."""
        self.on_trial = False
        """True while one lease at a time is granted, because the backend may not work."""
        self.leases: dict[Lease, None] = {}
        self.quarantine = Quarantine(shared=shared)
        self.foreign = 0
        self._foreign_from = 0.0
        """The time at which the probe left that showed the foreign work."""
        self.unverified = 0
        """The number of slots that `expire` freed although no answer showed them idle."""
        self.service_s: float | None = None
        """Smoothed duration of a lease in seconds, from grant to release; None before the first."""
        self.idle_since = 0.0
        """The time at which the last lease ended. Responses that clients still read do not count as use."""
        self.on_idle: Final[list[Callable[[], None]]] = []
        """Observers, called when the last live lease has ended."""
        self.released: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.on_quarantine: Final[list[Callable[[], None]]] = []
        """Observers, called when slots have to be verified. Without a prober they stay in quarantine."""
        self._trying: Lease | None = None
        """The lease that was granted on trial."""
        self._used: OrderedDict[int, None] = OrderedDict()
        """The ids of used slots. The slot that was used longest ago comes first."""
        self._leased = 0
        self._ours_at_most = 0
        """Slots that leases held when the last probe left, plus slots that were granted since."""

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
        """Slots without a lease that cannot be granted: they are in quarantine or must be cleaned first."""
        return len(self.quarantine) + len(self.unclean)

    def width_of(self, demand: Demand) -> int:
        """Return the number of slots that a lease for this demand holds in this pool."""
        exact = not self.numbered or (demand.width == 1 and demand.numbered)
        return demand.width if exact else max(self.total, demand.width)

    @property
    def room(self) -> int:
        """Tokens of the shared context that are not taken; below zero if a request outgrew its share."""
        return room(self.context, self.leases, self._quarantined_tokens)

    def tokens_of(self, demand: Demand) -> int:
        """Return the most tokens of the shared context that a lease for this demand can need."""
        if not (self.context and demand.open_ended):
            return min(demand.tokens, self.context)
        share = self.context * self.width_of(demand) // max(1, self.total)
        return min(max(share, demand.tokens + share // 2), self.context)

    def answer_limit(self, demand: Demand) -> int | None:
        """Return the limit of tokens for each answer; None if it has its own or the request runs alone."""
        tokens = self.tokens_of(demand)
        if not demand.open_ended or tokens == self.context:
            return None
        return max(1, (tokens - demand.tokens) // demand.width)

    def need_of(self, demand: Demand) -> ContextNeed:
        """Return the tokens of the shared context that a lease for this demand takes."""
        most = self.tokens_of(demand)
        runs_alone = demand.open_ended and most == self.context
        if demand.likely_tokens is None or runs_alone:
            return ContextNeed(most, most)
        return ContextNeed(min(demand.likely_tokens, most), most)

    def has_room(self, demand: Demand, ended: Collection[Lease] = ()) -> bool:
        """Return True if the shared context has room for this demand. There may still be no free slot.

        `ended` are leases to leave out, as if they had ended.
        """
        if not self.context:
            return True
        leases = [lease for lease in self.leases if lease not in ended]
        return fits(self.context, self.need_of(demand), leases, self._quarantined_tokens)

    def overgrown(self) -> Lease | None:
        """Return the lease that should end because the shared context is nearly full, or None."""
        return overgrown(self.context, self.leases, self._quarantined_tokens)

    @property
    def _quarantined_tokens(self) -> int:
        return sum(slot.tokens for slot in self.quarantine.slots)

    def fits(self, demand: Demand) -> bool:
        return self.width_of(demand) <= self.free and self.has_room(demand)

    def take(self, lease: Lease) -> None:
        need = self.need_of(lease.demand)
        lease.take_tokens(need.likely, need.most)
        lease.answer_limit = self.answer_limit(lease.demand)
        if self.numbered:
            lease.slots = tuple(sorted(self._free_numbers(lease.demand)[: lease.width]))
        self.leases[lease] = None
        self._trying = lease if self.on_trial else None
        self._leased += lease.width
        self._ours_at_most += lease.width

    def give_back(self, lease: Lease, now: float) -> None:
        """End a lease. Its slots are idle or go into quarantine, as its outcome says."""
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
        """Note the answer to a probe, and return the number of slots that have left the quarantine.

        `running` are the tasks that the backend was working on, or None if the answer could not be read.
        `busy` are the numbers of their slots. Call this `SETTLE_S` after the answer came.
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
        """Free the slots that no answer has shown for `max_s` seconds. Return how many left the quarantine.

        Foreign work expires in the same way, so that an old answer does not lower the capacity for ever.
        """
        if self.foreign and now >= self._foreign_from + max_s:
            self.foreign = 0
        returned = self.quarantine.expire(now, max_s)
        self._left(returned, now)
        self.unverified += len(returned)
        return len(returned)

    def cleaned(self, number: int) -> None:
        """Note that nothing of an isolated request is left in this slot, so that it can be granted again."""
        self.unclean.pop(number, None)
        self._used.pop(number, None)

    def restarted(self) -> None:
        """Forget all work of the backend, because it is a new process."""
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
        """Return the free slots: the one with most of the prompt, unused ones, then the longest idle."""
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
