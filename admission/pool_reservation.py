"""The reservation of a pool for a wide ticket, which needs several slots of one backend at once.

Slots become free one by one, so a wide ticket that only waited its turn would never see enough of them. When
it comes first in a pool's order and does not fit, it reserves the pool, which then holds the slots that
become free until the width is there. Held slots are idle, so holding has an end: after `hold_s`
the pool *yields* to tickets that fit for `YIELD_S`, then holds again, twice as long:

    holding --hold_s over--> yielding --YIELD_S over--> holding (2 * hold_s) ...

A hold that lasts as long as what was running when it began sees every slot come free; so the ticket
gets there, after at most about four times that long, and no slot is ever held idle for longer than the
longest request runs.

The ticket stays in the order meanwhile and is charged when it is granted. This module is pure; the
times are arguments.
"""

from __future__ import annotations

from slotgate.admission.ticket import Ticket

__all__ = ["FIRST_HOLD_S", "YIELD_S", "PoolReservation"]

FIRST_HOLD_S = 2.0
YIELD_S = 1.0


class PoolReservation:
    """The reservation of one pool, for at most one ticket at a time."""

    __slots__ = ("_hold_s", "_holding", "_phase_ends_at", "ticket")

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self._holding = False
        self._hold_s = FIRST_HOLD_S
        self._phase_ends_at = 0.0

    def __repr__(self) -> str:
        if self.ticket is None:
            return "<PoolReservation of no ticket>"
        return f"<PoolReservation {'holds' if self._holding else 'yields'} for {self.ticket!r}>"

    @property
    def holds(self) -> bool:
        """True while other tickets get no slot of this pool."""
        return self.ticket is not None and self._holding

    def begin(self, ticket: Ticket, now: float) -> None:
        self.ticket = ticket
        self._holding = True
        self._hold_s = FIRST_HOLD_S
        self._phase_ends_at = now + FIRST_HOLD_S

    def end(self) -> None:
        """End the reservation: the ticket has its slots, here or elsewhere, or cannot get them here."""
        self.ticket = None

    def advance(self, now: float) -> None:
        """Change the phase if it is over."""
        while self.ticket is not None and now >= self._phase_ends_at:
            if self._holding:
                self._phase_ends_at += YIELD_S
            else:
                self._hold_s *= 2
                self._phase_ends_at += self._hold_s
            self._holding = not self._holding

    def next_change_at(self) -> float | None:
        """Return the time at which the phase changes, or None. After `advance` it is never in the past."""
        return self._phase_ends_at if self.ticket is not None else None
