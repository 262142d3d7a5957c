"""Which abandoned slots are idle again: a pure rule over leases, quarantined slots and probes.

When a request ends in any other way than by the upstream's own end, its connection is closed, but
llama-server may go on working on it, above all in prefill. Its slots are quarantined until the
backend shows that they are idle. The backend is asked with a *probe* (`GET /slots`), and asking is
not free: llama-server looks for closed connections only after one second without any result in the
whole server, and an answer to `/slots` counts as a result. Polling quickly therefore keeps
the abandoned work alive. From that follow the times below:

* an early probe `EARLY_S` after the close if the stream had delivered events: llama-server then
  notices at its next write, so a cancelled decode costs its slot no more than that;
* otherwise the first probe after `SPACING_S`, and never two within `SPACING_S` while one of ours
  may be waiting to be noticed.

Reading an answer: of the slots that are busy, those of live leases that were started before the
probe left are accounted for. The rest is *stale*. As many quarantined slots stay as are stale; the
others return, oldest first. Whatever could be either way counts against returning: a lease that
ended or started while the probe was under way, or that is granted but not started, and of a wide
lease only the one slot that it surely uses. A slot whose request was closed before its response headers
may be about to become busy: only a probe sent `UNSTARTED_S` (plus time for a big body to be parsed)
after the close can show it idle, or one that follows a probe that saw it busy.

This module never awaits, reads no clock and opens no socket: the times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from admission.lease import Lease

__all__ = [
    "EARLY_S",
    "SHARED_S",
    "SPACING_S",
    "UNSTARTED_S",
    "Probe",
    "Quarantine",
    "QuarantinedSlot",
    "Reading",
]

EARLY_S = 0.1
SPACING_S = 1.5
SHARED_S = 2.0
UNSTARTED_S = 0.5
UNSTARTED_S_PER_MIB = 0.1
_MIB = 1024 * 1024


@dataclass(slots=True)
class QuarantinedSlot:
    """One slot of an abandoned lease."""

    closed_at: float
    started: bool
    delivered: bool
    body_bytes: int
    probed: bool = False
    """Whether a probe has left since the close."""
    seen_busy: bool = False

    def judged_by_probe_sent_at(self, sent_at: float) -> bool:
        """Whether a probe that left then can show this slot idle."""
        if self.started or self.seen_busy:
            return sent_at > self.closed_at
        return sent_at >= self.closed_at + self._unstarted_wait_s

    @property
    def _unstarted_wait_s(self) -> float:
        return UNSTARTED_S + UNSTARTED_S_PER_MIB * self.body_bytes / _MIB

    @property
    def wants_probe_at(self) -> float:
        if self.delivered and not self.probed:
            return self.closed_at + EARLY_S
        if not self.started and not self.seen_busy:
            return self.closed_at + max(SPACING_S, self._unstarted_wait_s)
        return self.closed_at + SPACING_S


@dataclass(frozen=True, slots=True)
class Probe:
    """A question under way: when it left, and which leases explain a busy slot for certain."""

    sent_at: float
    started: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one answer means. `returned` slots left the quarantine."""

    returned: int
    stale: int
    foreign: int
    """Busy slots that no lease, live or just ended, and no quarantined slot can explain."""


class Quarantine:
    """The abandoned slots of one backend."""

    __slots__ = ("_last_sent_at", "_recent", "shared", "slots")

    def __init__(self, *, shared: bool = False) -> None:
        self.slots: list[QuarantinedSlot] = []
        self.shared = shared
        self._last_sent_at: float | None = None
        self._recent: list[Lease] = []

    def __repr__(self) -> str:
        return f"<Quarantine {len(self.slots)} slots>"

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, lease: Lease, now: float) -> None:
        """Every slot of an abandoned lease, from the moment its connection was closed."""
        started = lease.started_at is not None
        self.slots.extend(
            QuarantinedSlot(now, started, lease.delivered, lease.demand.body_bytes)
            for _ in range(lease.width)
        )

    def clear(self) -> int:
        """The backend was restarted: nothing of ours is left in it. Returns how many slots that frees."""
        freed = len(self.slots)
        self.slots.clear()
        return freed

    def expire(self, now: float, max_s: float) -> int:
        """For a backend that does not serve `/slots`: free what is older than `max_s` seconds."""
        before = len(self.slots)
        self.slots = [slot for slot in self.slots if now - slot.closed_at < max_s]
        return before - len(self.slots)

    def oldest_age_s(self, now: float) -> float:
        return max((now - slot.closed_at for slot in self.slots), default=0.0)

    def next_probe_at(self, foreign: int) -> float | None:
        """When the next probe may leave; None while there is nothing to ask."""
        wanted = min((slot.wants_probe_at for slot in self.slots), default=None)
        if self.shared or foreign:
            again = (self._last_sent_at + SHARED_S) if self._last_sent_at is not None else 0.0
            wanted = again if wanted is None else min(wanted, again)
        if wanted is None or self._last_sent_at is None or not self._may_wait_to_be_noticed():
            return wanted
        return max(wanted, self._last_sent_at + SPACING_S)

    def _may_wait_to_be_noticed(self) -> bool:
        """Whether a probe could keep abandoned work alive: some slot's close may not be noticed yet.

        A single decode that nobody has asked about is not among them: it is noticed at its next write.
        """
        waiting = [slot for slot in self.slots if slot.probed or not slot.delivered]
        return bool(waiting)

    def sent(self, now: float, live: Iterable[Lease]) -> Probe:
        """A probe leaves now."""
        self._last_sent_at = now
        for slot in self.slots:
            slot.probed = True
        self._recent = list(live)
        return Probe(now, tuple(lease for lease in self._recent if lease.started_at is not None))

    def answered(self, probe: Probe, busy: int, live: Iterable[Lease]) -> Reading:
        """`busy` slots were processing when the backend answered."""
        explained = sum(1 for lease in probe.started if lease.live)
        stale = max(0, busy - explained)
        judged = [slot for slot in self.slots if slot.judged_by_probe_sent_at(probe.sent_at)]
        asked = [slot for slot in self.slots if slot.closed_at < probe.sent_at]
        returned = judged[: max(0, len(judged) - stale)]
        kept = judged[len(returned) :]
        for slot in asked if stale >= len(asked) else kept:
            slot.seen_busy = True
        gone = {id(slot) for slot in returned}
        self.slots = [slot for slot in self.slots if id(slot) not in gone]
        possible = {id(lease): lease.width for lease in (*self._recent, *live)}
        foreign = max(0, busy - sum(possible.values()) - len(self.slots) - len(returned))
        return Reading(len(returned), stale, foreign)
