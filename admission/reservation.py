"""Wide tickets: a ticket that needs several slots of one backend at once.

Slots free one by one, so a wide ticket that merely waited its turn would never see enough of them. When
it comes to the head of its line it is *parked* at one backend, which then holds the slots that become free
until its width is there. Held slots are idle slots, so holding has an end: after `hold` seconds the
backend *yields* to narrower tickets for `YIELD_S`, then holds again, twice as long. So a wide ticket gets
there in the end, and no slot idles without bound for it.

    holding --hold_s over--> yielding --YIELD_S over--> holding (2 * hold_s, at most LONGEST_HOLD_S) ...

This module is pure; the times are arguments.
"""

from __future__ import annotations

from collections import OrderedDict

from admission.ticket import Ticket

__all__ = ["Reservation"]

FIRST_HOLD_S = 2.0
LONGEST_HOLD_S = 30.0
YIELD_S = 1.0


class Reservation:
    """The wide tickets parked at one backend, first come first served."""

    __slots__ = ("_hold_s", "_holding", "_phase_ends_at", "parked")

    def __init__(self) -> None:
        self.parked: OrderedDict[int, Ticket] = OrderedDict()
        self._holding = False
        self._hold_s = FIRST_HOLD_S
        self._phase_ends_at = 0.0

    @property
    def head(self) -> Ticket | None:
        return next(iter(self.parked.values()), None)

    def park(self, ticket: Ticket, now: float) -> None:
        self.parked[ticket.seq] = ticket
        if len(self.parked) == 1:
            self._begin(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """Granted or withdrawn; the next parked ticket starts with a short hold of its own."""
        was_head = self.head is ticket
        del self.parked[ticket.seq]
        if was_head:
            self._begin(now)

    def holds(self, now: float) -> bool:
        """Whether narrower tickets must leave this backend's free slots alone just now."""
        if not self.parked:
            return False
        while now >= self._phase_ends_at:
            if self._holding:
                self._holding = False
                self._phase_ends_at += YIELD_S
            else:
                self._holding = True
                self._hold_s = min(2 * self._hold_s, LONGEST_HOLD_S)
                self._phase_ends_at += self._hold_s
        return self._holding

    def next_change_at(self) -> float | None:
        return self._phase_ends_at if self.parked else None

    def _begin(self, now: float) -> None:
        self._holding = True
        self._hold_s = FIRST_HOLD_S
        self._phase_ends_at = now + FIRST_HOLD_S
