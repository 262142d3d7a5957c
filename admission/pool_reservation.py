"""The reservation of a pool for a wide ticket, which needs several slots of one backend at once.

Slots become free one by one, so a wide ticket that only waited its turn would never find enough of them. When
it is first in a pool's order and does not fit, it reserves the pool. The pool then holds free slots back from
other tickets until there are enough for the width. Held slots are idle, so three rules keep that time short:

**Reach.** The guesses of the running leases tell when the width will be free. A lease that has overrun its
guess by some time is expected to run for as long again. A pool is held only if the width will be free before
the ticket times out. Foreign work, quarantined slots and streams that outlast the ticket are not counted on.

**Backfill.** A ticket that fits passes the wide one if its request will probably end before the width is
free, or if it leaves enough slots for the width. (Batch schedulers call this EASY backfilling.)

**Yield.** Guesses can be wrong. So idle time has a budget. After a pool has held slots back from other
tickets for h seconds, it yields to them for 4 h. After that it may hold slots for 2 h:

    holding --`hold_s` of idle time used up--> yielding --4 * that time--> holding (2 * hold_s) ...

The time of held slots is charged to the tenant of the wide ticket, even if the ticket gets no slots in the
end. So a tenant gains nothing by asking again. This module is pure; the times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotgate.admission.demand import Demand
from slotgate.admission.lease import Lease
from slotgate.admission.pool import SlotPool
from slotgate.admission.ticket import Ticket

__all__ = ["FIRST_HOLD_S", "LOOK_S", "YIELDS", "PoolReservation", "Reach", "reach"]

FIRST_HOLD_S = 2.0
YIELDS = 4
LOOK_S = 0.25
"""Seconds between two looks at a pool that holds slots back. Leases overrun their guesses meanwhile."""
_HOLD_FACTOR = 1.5
"""The first hold may last for the expected time until the width is free, times this factor."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The time at which there will probably be enough room for a ticket."""

    at: float
    spare: int
    """Slots that will be free then beyond the width; 0 if slots share a context, which may have no room."""


def reach(pool: SlotPool, demand: Demand, now: float) -> Reach | None:
    """Return when the pool will probably have room for a demand.

    None if the end of all leases would not do.
    """
    width, slots = pool.width_of(demand), pool.free
    if width <= slots and pool.has_room(demand):
        return Reach(now, 0 if pool.context else slots - width)
    ends = sorted(_ends(pool.leases, now), key=lambda entry: entry[0])
    ended: dict[Lease, None] = {}
    for number, (end, lease) in enumerate(ends, 1):
        slots += lease.width
        ended[lease] = None
        if width <= slots and pool.has_room(demand, ended):
            together = sum(other.width for at, other in ends[number:] if at <= end)
            return Reach(end, 0 if pool.context else slots - width + together)
    return None


def _ends(leases: Iterable[Lease], now: float) -> Iterable[tuple[float, Lease]]:
    for lease in leases:
        end = lease.granted_at + lease.expected_s
        yield (end if end >= now else now + (now - end)), lease


class PoolReservation:
    """The reservation of one pool. At most one ticket has it."""

    __slots__ = ("_hold_s", "_idle_s", "_looked_at", "_yields_until", "idle_slots", "ticket")

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self.idle_slots = 0
        """Slots that have been held back from other tickets since the last look."""
        self._hold_s = FIRST_HOLD_S
        self._idle_s = 0.0
        """Seconds for which this hold has held slots back."""
        self._looked_at = 0.0
        self._yields_until = 0.0

    def __repr__(self) -> str:
        if self.ticket is None:
            return "<PoolReservation of no ticket>"
        state = "yields" if self._yields_until > self._looked_at else "holds"
        return f"<PoolReservation {state} for {self.ticket!r}>"

    def begin(self, ticket: Ticket, now: float, ready_at: float) -> None:
        """Reserve the pool for a ticket that will probably have its width at `ready_at`."""
        self.ticket = ticket
        self.idle_slots = 0
        self._looked_at = now
        self._yields_until = now
        self._hold(FIRST_HOLD_S, ready_at - now)

    def end(self) -> None:
        """End the reservation. The ticket has got slots, here or elsewhere, or it cannot get them here."""
        self.ticket = None
        self.idle_slots = 0

    def advance(self, now: float) -> float:
        """Change the phase if it is over. Return the slot-seconds held back since the last call."""
        passed, self._looked_at = now - self._looked_at, now
        if self.ticket is None or not self.idle_slots:
            return 0.0
        self._idle_s += passed
        if self._idle_s >= self._hold_s:
            self._yields_until = now + YIELDS * self._idle_s
            self._hold(2 * self._hold_s, 0.0)
        return self.idle_slots * passed

    def holds(self, now: float) -> bool:
        """Return True if the pool holds slots back now, and False while it yields or is not reserved."""
        return self.ticket is not None and now >= self._yields_until

    def next_change_at(self) -> float | None:
        """Return the time of the next look, or None. Directly after `advance` it is in the future."""
        if self.ticket is None:
            return None
        if self.idle_slots:
            return self._looked_at + max(1e-3, min(LOOK_S, self._hold_s - self._idle_s))
        return self._yields_until if self._yields_until > self._looked_at else None

    def _hold(self, least_s: float, expected_s: float) -> None:
        self._idle_s = 0.0
        self._hold_s = max(least_s, _HOLD_FACTOR * expected_s)
