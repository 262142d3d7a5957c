"""The cost of a request: the time of the slots that it holds.

Tenants compete for the time of slots. So a lease costs its width times the seconds from its grant until its
slots are idle again, quarantine included. Cached prompts, pictures and streams that are cut short need no
rules of their own, because they take less or more time. A client cannot lower the cost by a false
`max_tokens`.

The time is known only at the end, so every clock has two parts:

    settled    slot-seconds that have passed: facts
    pending    what running leases are expected to take yet: guesses

A charge starts as a guess. While its slots are held, the time that has passed moves from guess to fact.
(Their sum is the guess, or the time held so far if that is longer.) When the charge closes, the rest of the
guess is dropped and the fact stays. The charge of a lease that was never used is taken back.

This module is pure; the times are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotgate.admission.fair_order import Account

__all__ = ["Charge", "Clock"]


class Clock:
    """Work that was done, in slot-seconds divided by a weight."""

    __slots__ = ("open", "pending", "settled")

    def __init__(self) -> None:
        self.settled = 0.0
        self.pending = 0.0
        self.open = 0
        """The number of charges that still run."""

    def __repr__(self) -> str:
        return f"<Clock {self.settled:g} settled, {self.pending:g} pending>"

    @property
    def value(self) -> float:
        return self.settled + self.pending

    def lift(self, level: float) -> None:
        """Raise the settled part to `level` if it is below."""
        self.settled = max(self.settled, level)

    def closed(self) -> None:
        """Note that a charge has ended.

        With the last one, `pending` becomes exactly 0 again: rounding leaves a rest.
        """
        self.open -= 1
        if not self.open:
            self.pending = 0.0


class Charge:
    """The slot time of one lease, posted to one or more clocks."""

    __slots__ = ("_clocks", "_guess", "_pending", "_since", "account", "held", "slots")

    def __init__(
        self,
        account: Account,
        clocks: Sequence[tuple[Clock, float]],
        slots: int,
        guess: float,
        now: float,
    ) -> None:
        """Post `guess` slot-seconds as pending.

        `clocks` are pairs: a clock, and the weight that divides for it.
        """
        self.account = account
        self._clocks = clocks
        self._guess = self._pending = guess
        self._since = now
        self.held = 0.0
        """Slot-seconds until the last update: the fact."""
        self.slots = slots
        """Slots that are still held; 0 when the charge is closed."""
        for clock, weight in clocks:
            clock.open += 1
            clock.pending += guess / weight

    def __repr__(self) -> str:
        return f"<Charge {self.held:g} held, {self._pending:g} pending, {self.slots} slots>"

    @property
    def expected_end(self) -> float:
        """The time at which the charge probably ends, as known at the last update. It may have passed."""
        return self._since + self._pending / max(1, self.slots)

    def update(self, now: float) -> None:
        """Turn the time since the last update from guess into fact."""
        passed = self.slots * (now - self._since)
        if passed <= 0:
            return
        self._since = now
        self.held += passed
        self._post(passed, max(0.0, self._guess - self.held))

    def give_back(self, slots: int, now: float) -> None:
        """Stop charging for slots that are idle again. The charge closes with the last of them."""
        if not self.slots:
            return
        self.update(now)
        self.slots -= slots
        if not self.slots:
            self._close()

    def close(self, now: float) -> None:
        self.give_back(self.slots, now)

    def cancel(self) -> None:
        """Take everything back, because the lease was never used."""
        if self.slots:
            self.slots = 0
            self._post(-self.held, self._pending)
            self.held = 0.0
            self._close()

    def forgive(self) -> None:
        """Take everything back from a charge that has ended. Nothing was served for it."""
        if self.held:
            self._post(-self.held, 0.0)
            self.held = 0.0

    def move(self, account: Account, clocks: Sequence[tuple[Clock, float]]) -> None:
        """Post to other clocks from now on. Time that has passed stays posted to the old ones."""
        self.account = account
        before, self._clocks = self._clocks, clocks
        for clock, weight in before:
            clock.pending -= self._pending / weight
            clock.closed()
        for clock, weight in clocks:
            clock.open += 1
            clock.pending += self._pending / weight

    def _close(self) -> None:
        self._post(0.0, 0.0)
        for clock, _ in self._clocks:
            clock.closed()

    def _post(self, settled: float, pending: float) -> None:
        change, self._pending = pending - self._pending, pending
        for clock, weight in self._clocks:
            clock.settled += settled / weight
            clock.pending += change / weight
