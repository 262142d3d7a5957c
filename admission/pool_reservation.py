"""The reservation of a pool for a wide ticket, which needs several slots of one backend at once.

Slots become free one by one, so a wide ticket that only waited its turn would never see enough of them.
When it comes first in a pool's order and does not fit, it reserves the pool, which then holds the slots
that become free until the width is there. Held slots are idle, so three rules keep that time short:

**Reach.** From the guesses of the leases that run follows when the width will be there. A lease that has
overrun its guess by some time is expected to run for as long again. A pool is held only for a width that
will be there before the ticket's wait ends: foreign work, quarantined slots and a stream that will outlive
the ticket do not become free in time.

**Backfill.** A ticket that fits and is expected to end before the width is there passes, and so does one
that leaves enough slots for the width. (EASY backfilling, of batch schedulers.)

**Yield.** Guesses can be wrong. So idle time has a budget: after slots were held back from other tickets
for h seconds, the pool yields to them for 4 h, then may hold twice as long:

    holding --`hold_s` of idle time used up--> yielding --4 * that time--> holding (2 * hold_s) ...

The time of slots that are held back from others is charged to the tenant of the wide ticket, whether or not
it gets there: asking again gains nothing. This module is pure; the times are arguments.
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
"""While slots are held back, the pool is looked at again so often, because leases overrun their guesses."""
_HOLD_FACTOR = 1.5
"""A hold may last so many times as long as the width is expected to need."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The time at which a width will probably be free."""

    at: float
    spare: int
    """Slots that will be free beyond the width then; 0 where slots share a context, which may be missing."""


def reach(pool: SlotPool, demand: Demand, now: float) -> Reach | None:
    """Return when the pool will probably have room for a demand; None if leases that end do not suffice."""
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
    """The reservation of one pool, for at most one ticket at a time."""

    __slots__ = ("_hold_s", "_idle_s", "_looked_at", "_yields_until", "idle_slots", "ticket")

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self.idle_slots = 0
        """Slots that are held back from other tickets since the last look."""
        self._hold_s = FIRST_HOLD_S
        self._idle_s = 0.0
        """Seconds of this hold for which slots were held back."""
        self._looked_at = 0.0
        self._yields_until = 0.0

    def __repr__(self) -> str:
        if self.ticket is None:
            return "<PoolReservation of no ticket>"
        state = "yields" if self._yields_until > self._looked_at else "holds"
        return f"<PoolReservation {state} for {self.ticket!r}>"

    def begin(self, ticket: Ticket, now: float, ready_at: float) -> None:
        """Hold the pool for a ticket whose width will probably be there at `ready_at`."""
        self.ticket = ticket
        self.idle_slots = 0
        self._looked_at = now
        self._yields_until = now
        self._hold(FIRST_HOLD_S, ready_at - now)

    def end(self) -> None:
        """End the reservation: the ticket has its slots, here or elsewhere, or cannot get them here."""
        self.ticket = None
        self.idle_slots = 0

    def advance(self, now: float) -> float:
        """Change the phase if it is over. Return the slot-seconds that were held back since the last call."""
        passed, self._looked_at = now - self._looked_at, now
        if self.ticket is None or not self.idle_slots:
            return 0.0
        self._idle_s += passed
        if self._idle_s >= self._hold_s:
            self._yields_until = now + YIELDS * self._idle_s
            self._hold(2 * self._hold_s, 0.0)
        return self.idle_slots * passed

    def holds(self, now: float) -> bool:
        """Return True while other tickets may be held back."""
        return self.ticket is not None and now >= self._yields_until

    def next_change_at(self) -> float | None:
        """Return the time at which to look again, or None. After `advance` it is never in the past."""
        if self.ticket is None:
            return None
        if self.idle_slots:
            return self._looked_at + max(1e-3, min(LOOK_S, self._hold_s - self._idle_s))
        return self._yields_until if self._yields_until > self._looked_at else None

    def _hold(self, least_s: float, expected_s: float) -> None:
        self._idle_s = 0.0
        self._hold_s = max(least_s, _HOLD_FACTOR * expected_s)
