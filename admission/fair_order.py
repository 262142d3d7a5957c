"""Decides which tenant is next: fair shares of slot time between tenants, arrival order within one.

Pools that serve a common model share one `FairOrder`, directly or through other pools. So a tenant that can
use several of these pools has one share in all of them. The order keeps an `Account` for each tenant. Its
clock (`slot_time`) counts the slot time that the tenant took, divided by the tenant's weight. The tenant
whose clock shows least is served next.

**Newcomers.** A tenant saves up no claim while it is idle. When it begins to wait, its clock is raised to a
*level*: the least settled value of the tenants that wait at the same pool. If no tenant waits there, the
level is the settled value of the tenant that was served last. The level has no guesses in it, because guesses
may be too high, and the newcomer would have to wait for the difference. If several pools serve its model, the
highest of their levels counts. Otherwise the tenants at one pool would have to let the newcomer catch up with
tenants at another pool.

**Returning tenants.** Clients send the next request when they have the answer, so a tenant often leaves the
queue for a moment. A tenant that was behind the others when its last ticket left, and that comes back within
`RETURN_S`, starts as far below the level as it was, but no further than one long request. A tenant with short
requests needs this, because it is owed several turns for each long request of another tenant.

**Batch.** The two priority classes share by slot time, too. Each class has a clock that counts contested work
only: leases that are granted while the other class waits at the same pool. Interactive tickets go first while
the clock of their class shows no more than the clock of batch. The weight of the interactive class is the sum
of the weights of its waiting tenants. The weight of the batch class is an eighth of that sum, or an eighth of
the sum of its own tenants if that is less. When batch tickets begin to wait, eight interactive requests still
go first. Batch work moves its tenant's interactive clock as well, so a tenant gains nothing by declaring its
requests as batch.

This module is pure: the times are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slotgate.admission.demand import Priority
from slotgate.admission.slot_time import Charge, Clock

if TYPE_CHECKING:
    from slotgate.admission.flow import Flow

__all__ = ["BATCH_TURN", "REFRESH_S", "RETURN_S", "Account", "FairOrder"]

BATCH_TURN = 8
RETURN_S = 10.0
REFRESH_S = 1.0
"""Seconds between two updates of the running charges. An update turns guesses into facts."""
_TURN_DECAY = 0.98
_REMEMBERED = 512
"""The number of idle tenants whose accounts an order keeps at least."""


class Account:
    """The slot time of one tenant in one order."""

    __slots__ = ("_updated_at", "charges", "clocks", "flows", "lag", "left_at", "order", "tenant", "waits")

    def __init__(self, tenant: str, order: FairOrder) -> None:
        self.tenant = tenant
        self.order = order
        self.clocks = (Clock(), Clock())
        """Priority -> clock. The interactive clock counts all work, the other one batch work only."""
        self.charges: dict[Charge, None] = {}
        """The charges of leases whose slots are not all idle yet."""
        self.flows: dict[Flow, None] = {}
        self.waits = [0, 0]
        """Priority -> number of the tenant's flows."""
        self.lag = [0.0, 0.0]
        """Priority -> how far the tenant was behind the others when it stopped waiting."""
        self.left_at = [0.0, 0.0]
        """Priority -> the time when the tenant stopped waiting."""
        self._updated_at = 0.0

    def __repr__(self) -> str:
        return f"<Account {self.tenant}: {self.clocks[0]!r}, {len(self.charges)} charges>"

    def update(self, now: float) -> None:
        """Turn guesses into facts, at most once in `REFRESH_S`."""
        if self.charges and now - self._updated_at >= REFRESH_S:
            self._updated_at = now
            for charge in self.charges:
                charge.update(now)

    def restate(self) -> None:
        """Rank the tenant's flows anew.

        Its clock was put back, so they may be next earlier than they were.
        """
        for flow in self.flows:
            if flow.value < flow.stated:
                flow.restate()


class FairOrder:
    """The accounts and the class clocks of connected pools. Tenants that are not in `weights` weigh 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.accounts: dict[str, Account] = {}
        self.classes = (Clock(), Clock())
        self._waiting_weight = [0.0, 0.0]
        self._waiting = [0, 0]
        self._last_served: list[Account | None] = [None, None]
        self._contested: dict[Charge, None] = {}
        self._contested_at = 0.0
        self._turns_left = 0
        """Interactive requests that still go ahead of batch work that has just begun to wait."""
        self._turn = [0.0, 0.0]
        """Priority -> slot time of the longest of the latest requests, divided by its tenant's weight."""
        self._sweep_at = 2 * _REMEMBERED

    def __repr__(self) -> str:
        return f"<FairOrder of {len(self.accounts)} tenants, {sum(self._waiting)} waiting>"

    def account(self, tenant: str) -> Account:
        account = self.accounts.get(tenant)
        if account is None:
            if len(self.accounts) >= self._sweep_at:
                self._sweep()
            account = self.accounts[tenant] = Account(tenant, self)
        return account

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def reweigh(self) -> None:
        """Compute the sums of weights anew.

        Work that was done stays divided by the weight it was done with.
        """
        for priority in Priority:
            waiting = [account for account in self.accounts.values() if account.waits[priority]]
            self._waiting[priority] = len(waiting)
            self._waiting_weight[priority] = sum(self.weight(account.tenant) for account in waiting)

    # -- waiting

    def begin_to_wait(self, flow: Flow, now: float) -> None:
        """Note that the first ticket of a flow has come."""
        account, priority = flow.account, flow.priority
        if not account.waits[priority]:
            self._lift(account, priority, flow.rivals_level(now), now)
            self._waiting[priority] += 1
            self._waiting_weight[priority] += self.weight(account.tenant)
            if priority is Priority.BATCH and self._waiting[priority] == 1:
                self._turns_left = BATCH_TURN
                self.classes[Priority.BATCH].lift(self.classes[Priority.INTERACTIVE].settled)
        account.waits[priority] += 1
        account.flows[flow] = None

    def end_to_wait(self, flow: Flow, now: float) -> None:
        """Note that the last ticket of a flow has left."""
        account, priority = flow.account, flow.priority
        del account.flows[flow]
        account.waits[priority] -= 1
        if not account.waits[priority]:
            level = flow.rivals_level(now)
            lag = 0.0 if level is None else level - account.clocks[priority].settled
            account.lag[priority] = min(lag, self._turn[priority])
            account.left_at[priority] = now
            self._waiting[priority] -= 1
            self._waiting_weight[priority] -= self.weight(account.tenant)
            if not self._waiting[priority]:
                self._waiting_weight[priority] = 0.0

    def batch_first(self, now: float) -> bool:
        """Return True if batch is next at a pool where both classes wait."""
        if now - self._contested_at >= REFRESH_S:
            self._contested_at = now
            for charge in self._contested:
                charge.update(now)
        interactive, batch = self.classes
        return not self._turns_left and batch.value < interactive.value

    @property
    def interactive_per_batch(self) -> float:
        """The work that interactive requests get for each unit of batch work while both classes wait."""
        return self._class_weight(Priority.INTERACTIVE) / self._class_weight(Priority.BATCH)

    # -- being served

    def charge(
        self,
        tenant: str,
        priority: Priority,
        slots: int,
        guess: float,
        now: float,
        *,
        contested: bool = False,
    ) -> Charge:
        """Charge a grant of `slots` that will probably take `guess` slot-seconds.

        `contested` says that the other class waits at the same pool.
        """
        account = self.account(tenant)
        if not account.waits[priority]:
            self._lift(account, priority, None, now)
        self._last_served[priority] = account
        weight = self.weight(tenant)
        clocks = [(account.clocks[0], weight)]
        if priority is Priority.BATCH:
            clocks.append((account.clocks[1], weight))
        if contested:
            if priority is Priority.INTERACTIVE:
                self._turns_left = max(0, self._turns_left - 1)
            clocks.append((self.classes[priority], self._class_weight(priority)))
        charge = Charge(account, clocks, slots, guess, now)
        account.charges[charge] = None
        if contested:
            self._contested[charge] = None
        return charge

    def ended(self, charge: Charge) -> None:
        """Forget a charge that is closed or cancelled."""
        account = charge.account
        del account.charges[charge]
        self._contested.pop(charge, None)
        turn = charge.held / self.weight(account.tenant)
        for priority in Priority:
            self._turn[priority] = max(turn, _TURN_DECAY * self._turn[priority])
        account.restate()

    def charge_held(self, tenant: str, priority: Priority, slot_seconds: float) -> None:
        """Charge a tenant for slots that were held idle for its ticket."""
        work = slot_seconds / self.weight(tenant)
        clocks = self.account(tenant).clocks
        clocks[Priority.INTERACTIVE].settled += work
        if priority is Priority.BATCH:
            clocks[Priority.BATCH].settled += work

    # -- regrouping

    def take_over(self, other: FairOrder) -> None:
        """Take over the accounts of another order, whose pools belong to this one from now on.

        Tenants keep their distances to each other.
        """
        for priority in Priority:
            here, there = self._floor(priority), other._floor(priority)
            for tenant, theirs in other.accounts.items():
                clock = self.account(tenant).clocks[priority]
                clock.settled = max(clock.settled, here) + theirs.clocks[priority].settled - there

    def take_charge(self, charge: Charge) -> None:
        """Take over the charge of a lease at a pool that has come from another order."""
        account = charge.account
        if account.order is not self:
            del account.charges[charge]
            account.order._contested.pop(charge, None)
            mine = self.account(account.tenant)
            mine.charges[charge] = None
            charge.move(mine, [(mine.clocks[0], self.weight(account.tenant))])

    # -- mechanism

    def _lift(self, account: Account, priority: Priority, level: float | None, now: float) -> None:
        last = self._last_served[priority]
        if level is None:
            if last is None or last is account:
                return
            last.update(now)
            level = last.clocks[priority].settled
        if account.lag[priority] > 0 and now - account.left_at[priority] <= RETURN_S:
            level -= account.lag[priority]
        account.clocks[priority].lift(level)

    def _class_weight(self, priority: Priority) -> float:
        interactive, batch = self._waiting_weight
        interactive = interactive or 1.0
        if priority is Priority.INTERACTIVE:
            return interactive
        return min(batch or interactive, interactive) / BATCH_TURN

    def _floor(self, priority: Priority) -> float:
        settled = (account.clocks[priority].settled for account in self.accounts.values())
        return min(settled, default=0.0)

    def _sweep(self) -> None:
        """Forget idle tenants, except those whose clocks are furthest ahead."""
        idle = [account for account in self.accounts.values() if not account.flows and not account.charges]
        idle.sort(key=lambda account: account.clocks[0].settled)
        for account in idle[:-_REMEMBERED]:
            del self.accounts[account.tenant]
        self._sweep_at = 2 * len(self.accounts) + _REMEMBERED
