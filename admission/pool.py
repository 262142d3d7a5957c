"""The slots of one backend: how many there are, who holds them, which are not known to be idle.

    free = total - live leases - quarantined - foreign        (never below zero)

`total` follows the backend: shrinking evicts nobody, growing grants at once. Foreign work (of others,
on a shared backend) lowers what is free while it lasts and takes no slot away for good.

This module never awaits and reads no clock. It changes counts; who gets a freed slot is the scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from admission.lease import Lease, Outcome
from admission.quarantine import Probe, Quarantine

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
        self.on_trial = False
        """One lease at a time: nobody knows whether the backend works."""
        self.leases: dict[Lease, None] = {}
        self.quarantine = Quarantine(shared=shared)
        self.foreign = 0
        self.service_s: float | None = None
        """Smoothed duration of a lease in seconds, from grant to release; None before the first."""
        self.idle_since = 0.0
        """When the last lease ended: what idle logic looks at, and not at responses that are still open."""
        self.on_idle: Callable[[], None] = _nobody_asks
        """Called when the last live lease has ended: where unloading what is not used begins."""
        self.released: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.on_quarantine: Callable[[], None] = _nobody_asks
        """Called when slots have to be verified: whoever probes sets it."""
        self._trying: Lease | None = None
        """The one that was granted on trial."""
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
        return max(0, self.total - self._leased - len(self.quarantine) - self.foreign)

    @property
    def admissible(self) -> int:
        return self.free if self.admitting else 0

    def take(self, lease: Lease) -> None:
        self.leases[lease] = None
        self._trying = lease if self.on_trial else None
        self._leased += lease.width
        self._ours_at_most += lease.width

    def give_back(self, lease: Lease, now: float) -> None:
        """A lease has ended; its slots are idle or quarantined, as its outcome says."""
        del self.leases[lease]
        if lease is self._trying:
            self._trying = None
        self._leased -= lease.width
        assert lease.outcome is not None
        self.released[lease.outcome] += 1
        if not lease.outcome.verified:
            self.quarantine.add(lease, now, total=self.total)
            self.on_quarantine()
        if lease.outcome is Outcome.FINISHED:
            took = now - lease.granted_at
            smoothed = self.service_s if self.service_s is not None else took
            self.service_s = smoothed + _SERVICE_SMOOTHING * (took - smoothed)
        if not self.leases:
            self.idle_since = now
            self.on_idle()

    def probe_sent(self, now: float) -> Probe:
        self._ours_at_most = self._leased
        return self.quarantine.sent(now, self.leases)

    def probe_answered(self, probe: Probe, running: frozenset[Hashable] | None, now: float) -> int:
        """`running` names the tasks that the backend was working on; None if that stays unknown.

        To be called `SETTLE_S` after the answer came. Returns how many slots have left the quarantine.
        """
        returned = self.quarantine.answered(probe, running, now, total=self.total)
        if running is not None:
            ours = self._ours_at_most + self.quarantine.closed_before(probe)
            self.foreign = max(0, len(running) - ours)
        return returned

    def restarted(self) -> None:
        """The backend is a new process: whatever its slots were busy with is gone."""
        self.quarantine.clear()
        self.foreign = 0

    def next_probe_at(self) -> float | None:
        return self.quarantine.next_probe_at(foreign=self.foreign)

    def status(self, now: float) -> PoolStatus:
        return PoolStatus(
            total=self.total,
            idle=self.free,
            leased=self._leased,
            quarantined=len(self.quarantine),
            foreign=self.foreign,
            quarantined_oldest_s=self.quarantine.oldest_age_s(now),
            idle_s=0.0 if self.leases else now - self.idle_since,
        )


def mean_service_s(pools: Iterable[SlotPool]) -> float | None:
    known = [pool.service_s for pool in pools if pool.service_s is not None]
    return sum(known) / len(known) if known else None


def _nobody_asks() -> None:
    """Nobody is interested. Without a prober quarantined slots stay out."""
