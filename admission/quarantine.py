"""Finds out which abandoned slots are idle again: a pure rule over leases, quarantined slots and probes.

A request may end before its upstream has completed the message. Then its connection is closed, but
llama-server may go on working on it, above all in prefill. Its slots are quarantined until the backend shows
that they are idle.

**When to ask.** The backend is asked with a *probe* (`GET /slots`), and asking is not free:
llama-server looks for closed connections only after one second without any result in the whole server,
and an answer to `/slots` counts as a result. Polling quickly therefore keeps the abandoned work alive. So:

* if the stream had delivered events, one early probe leaves `EARLY_S` after the close: llama-server notices
  the close at its next write, so the slot of a cancelled decode is back that soon;
* any other first probe leaves `SPACING_S` after the close, and each further probe no less than that after
  the last answer, while a closed request may not have been noticed yet.

**What an answer means.** It names the running tasks. A closed request that still runs is among them, and
among the tasks of every later answer. So each answer is kept as a `ProbeResult`, and later answers remove
from it the tasks that have ended. Of the tasks that remain, one belongs to each lease that certainly had its
slot when the probe left and is still live. The others may belong to quarantined slots. As many quarantined
slots stay, and the rest return, oldest first. (One answer alone is not enough. If all other slots are always
busy with requests that report nothing before their end, one answer can never show that the abandoned slot is
idle.)

In doubt a slot stays. A lease that ended or started while the probe was under way accounts for no task.
Neither does a lease that is granted and not started. A wide lease accounts for one task only, because it
surely uses one slot.

An answer is evaluated `SETTLE_S` after it came, because the end of a request may still have been on its way.

A request that was closed before its response headers may not have taken its slot yet. So only probes that
leave `UNSTARTED_S` after the close, plus the time to parse a big body, show anything about it.

**What a missing answer means.** At first it means nothing, because an answer may fail by chance. But no slot
waits for ever: `expire` frees a slot if no answer could be read for `max_s` seconds. A slot that answers keep
showing busy is never freed in that way.

This module never awaits, reads no clock and opens no socket: the times are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

from slotgate.admission.lease import Lease

__all__ = [
    "CERTAIN_S",
    "EARLY_S",
    "SETTLE_S",
    "SHARED_S",
    "SPACING_S",
    "Quarantine",
    "QuarantinedSlot",
    "SlotProbe",
]

EARLY_S = 0.1
SPACING_S = 1.5
SETTLE_S = 0.05
SHARED_S = 2.0
UNSTARTED_S = 0.5
UNSTARTED_S_PER_MIB = 0.1
CERTAIN_S = 10.0
"""Seconds after its grant from which a live lease certainly has its slot, even if the stream has said
nothing: by then its request is connected, sent and parsed."""
_MIB = 1024 * 1024
_MAX_RESULTS = 32


@dataclass(slots=True)
class QuarantinedSlot:
    """A slot of an abandoned lease, which may still be busy."""

    closed_at: float
    visible_from: float
    """The time from which a probe that leaves shows the slot as busy if it is."""
    delivered: bool
    refills: bool
    """True if the request may have more work than slots. Deferred work then takes the place of work that
    ends."""
    number: int | None = None
    """The id of the slot; None if the pool does not number its slots."""
    isolated: bool = False
    """True if the slot must be cleaned of its request before another request gets it."""
    tokens: int = 0
    """The tokens of a shared context that it holds."""
    lease: Lease | None = None
    """The lease that the slot belonged to. Its tenant pays for the slot until it is idle."""
    probed: bool = False
    """True once a probe has left since the close."""

    @classmethod
    def of(cls, lease: Lease, now: float, *, number: int | None, refills: bool) -> QuarantinedSlot:
        parsing_s = UNSTARTED_S + UNSTARTED_S_PER_MIB * lease.demand.body_bytes / _MIB
        visible_from = now if lease.started_at is not None else now + parsing_s
        tokens = lease.tokens // lease.width
        return cls(now, visible_from, lease.delivered, refills, number, lease.demand.isolated, tokens, lease)

    @property
    def noticed_at_a_write(self) -> bool:
        """True if a probe cannot keep its work alive: it was decoding, and no probe has left since then."""
        return self.delivered and not self.probed

    @property
    def wants_probe_at(self) -> float:
        if self.noticed_at_a_write:
            return self.closed_at + EARLY_S
        return max(self.closed_at + SPACING_S, self.visible_from)


@dataclass(frozen=True, slots=True)
class SlotProbe:
    """A query of `/slots` under way: when it left, and the leases that certainly had their slots then."""

    sent_at: float
    certain: tuple[Lease, ...]


@dataclass(slots=True, eq=False)
class ProbeResult:
    """The tasks that one answer named, less the tasks that have ended since."""

    sent_at: float
    running: frozenset[Hashable]
    certain: tuple[Lease, ...]

    @property
    def stale_at_most(self) -> int:
        """The number of running tasks that may belong to quarantined slots."""
        return len(self.running) - sum(lease.live for lease in self.certain)


class Quarantine:
    """The abandoned slots of one backend."""

    __slots__ = ("_asked_at", "_read_from", "_results", "shared", "slots")

    def __init__(self, *, shared: bool = False) -> None:
        self.slots: list[QuarantinedSlot] = []
        """The quarantined slots, oldest first."""
        self.shared = shared
        self._asked_at: float | None = None
        self._read_from: float | None = None
        """The time at which the last probe left whose answer could be read; None before the first."""
        self._results: list[ProbeResult] = []

    def __repr__(self) -> str:
        return f"<Quarantine {len(self.slots)} slots, {len(self._results)} results>"

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, lease: Lease, now: float, *, total: int) -> None:
        """Add every slot of an abandoned lease when its connection is closed."""
        refills = lease.width >= total
        numbers = lease.slots or (None,) * lease.width
        self.slots += [QuarantinedSlot.of(lease, now, number=number, refills=refills) for number in numbers]

    def clear(self) -> None:
        """Add every slot of an abandoned lease, at the moment its connection is closed."""
        self._results.clear()
        self._keep([])

    def expires_at(self, max_s: float) -> float | None:
        """Return the time at which `expire` frees the next slot; None if the quarantine is empty."""
        return min((self._unseen_since(slot) + max_s for slot in self.slots), default=None)

    def expire(self, now: float, max_s: float) -> list[QuarantinedSlot]:
        """Free the slots that no answer has shown for `max_s` seconds."""
        return self._keep([slot for slot in self.slots if now < self._unseen_since(slot) + max_s])

    def _unseen_since(self, slot: QuarantinedSlot) -> float:
        return slot.closed_at if self._read_from is None else max(slot.closed_at, self._read_from)

    def oldest_age_s(self, now: float) -> float:
        return max((now - slot.closed_at for slot in self.slots), default=0.0)

    def closed_before(self, probe: SlotProbe) -> int:
        """Return the number of quarantined slots that the probe may have seen busy."""
        return sum(slot.closed_at <= probe.sent_at for slot in self.slots)

    # -- when to ask

    def next_probe_at(self, *, foreign: int) -> float | None:
        """Return the time at which the next probe may leave, or None if none is needed."""
        wanted = min((slot.wants_probe_at for slot in self.slots), default=None)
        if self.shared or foreign:
            again = 0.0 if self._asked_at is None else self._asked_at + SHARED_S
            wanted = again if wanted is None else min(wanted, again)
        if wanted is None or self._asked_at is None or all(slot.noticed_at_a_write for slot in self.slots):
            return wanted
        return max(wanted, self._asked_at + SPACING_S)

    def sent(self, now: float, live: Iterable[Lease]) -> SlotProbe:
        """Note that a probe leaves now, and return it."""
        self._asked_at = now
        for slot in self.slots:
            slot.probed = True
        return SlotProbe(now, tuple(lease for lease in live if _has_its_slot(lease, now)))

    # -- what an answer means

    def answered(
        self,
        probe: SlotProbe,
        running: frozenset[Hashable] | None,
        now: float,
        *,
        total: int,
        busy: Collection[int] = (),
    ) -> list[QuarantinedSlot]:
        """Note the tasks that the answer names, and return the slots that have left the quarantine.

        `running` is None if the answer could not be read. `busy` are the numbers of the slots in which these
        tasks run. If one of two numbered slots must stay, the slot that was seen busy stays.
        """
        self._asked_at = now
        if running is None:
            return []
        self._read_from = probe.sent_at
        self._add_result(ProbeResult(probe.sent_at, running, probe.certain))
        for slot in self.slots:
            if slot.refills and slot.visible_from <= probe.sent_at:
                slot.visible_from = probe.sent_at
                slot.refills = len(running) >= total
        return self._return_idle(busy)

    def _add_result(self, latest: ProbeResult) -> None:
        self._results.append(latest)
        for result in self._results:
            result.running &= latest.running
        if len(self._results) > _MAX_RESULTS:
            del self._results[1::2]

    def _return_idle(self, busy: Collection[int]) -> list[QuarantinedSlot]:
        """Keep as many slots as may be busy by every result, first those seen busy, then the newest.

        Return the rest.
        """
        room = {result: result.stale_at_most for result in self._results}
        kept: list[QuarantinedSlot] = []
        newest_first = reversed(self.slots)
        for slot in sorted(newest_first, key=lambda slot: slot.number not in busy):
            judging = [result for result in self._results if result.sent_at >= slot.visible_from]
            if all(room[result] > 0 for result in judging):
                kept.append(slot)
                for result in judging:
                    room[result] -= 1
        returned = self._keep(kept)
        if not self.slots:
            self._results.clear()
        return returned

    def _keep(self, kept: list[QuarantinedSlot]) -> list[QuarantinedSlot]:
        """Keep only these slots, and return those that leave."""
        staying = {id(slot) for slot in kept}
        leaving = [slot for slot in self.slots if id(slot) not in staying]
        self.slots = [slot for slot in self.slots if id(slot) in staying]
        for slot in leaving:
            if slot.lease is not None:
                slot.lease.slots_idle(1)
        return leaving


def _has_its_slot(lease: Lease, now: float) -> bool:
    return lease.started_at is not None or now - lease.granted_at >= CERTAIN_S
