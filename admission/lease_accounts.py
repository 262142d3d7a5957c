"""The accounts of leases: counts them by tenant, charges for them, and learns how long requests take.

A lease is charged from its grant until all of its slots are idle again (`admission.slot_time`). So the charge
stays open while slots of the lease are in quarantine. When the charge closes, its slot time is added to the
tenant's total, and the guesses learn from it.

This module never awaits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from slotgate.admission.demand import Demand
from slotgate.admission.guesses import Guesses
from slotgate.admission.lease import Lease, Outcome
from slotgate.admission.pool import SlotPool
from slotgate.admission.queues import PoolQueue
from slotgate.admission.slot_time import Charge

__all__ = ["LeaseAccounts"]


class LeaseAccounts:
    def __init__(
        self,
        pool_queues: Mapping[SlotPool, PoolQueue],
        guesses: Guesses,
        clock: Callable[[], float],
        on_released: Callable[[SlotPool], None],
    ) -> None:
        """`pool_queues` is the scheduler's own mapping, which changes with the routes.

        `on_released` is called at the end of every lease, after the pool has taken its slots back.
        """
        self.granted = 0
        self.by_tenant: Counter[str] = Counter()
        """Live leases by tenant."""
        self.slot_seconds: defaultdict[str, float] = defaultdict(float)
        """Tenant -> slot time of closed charges, and of slots that were held for its wide tickets."""
        self.open_charges: dict[Charge, SlotPool] = {}
        """Charge -> pool, for leases whose slots are not all known to be idle yet."""
        self.guesses = guesses
        self._pool_queues = pool_queues
        self._clock = clock
        self._on_released = on_released

    def __repr__(self) -> str:
        live = self.by_tenant.total()
        return f"<LeaseAccounts {live} live, {len(self.open_charges)} open charges, {self.granted} granted>"

    def charge(self, pool_queue: PoolQueue, demand: Demand, *, contested: bool) -> Charge:
        """Open the charge of a lease that is about to be granted.

        `contested` says that a ticket of the other priority waits at the same pool.
        """
        width = pool_queue.pool.width_of(demand)
        charge = pool_queue.order.charge(
            demand.tenant,
            demand.priority,
            width,
            self.guesses.at(demand, pool_queue.pool.name) * width,
            self._clock(),
            contested=contested,
        )
        self.open_charges[charge] = pool_queue.pool
        return charge

    def lease(self, pool: SlotPool, demand: Demand, charge: Charge) -> Lease:
        """Take the slots of a pool for a demand. The charge runs until they are idle again."""
        width = pool.width_of(demand)
        lease = Lease(
            demand,
            pool_name=pool.name,
            width=width,
            clock=self._clock,
            expected_s=self.guesses.at(demand, pool.name),
            on_release=partial(self._released, pool, charge),
            on_idle=partial(self._slots_idle, pool, charge, demand, width),
            on_forgiven=partial(self._forgive, charge),
        )
        pool.take(lease)
        self.granted += 1
        self.by_tenant[demand.tenant] += 1
        return lease

    def charge_held(self, pool_queue: PoolQueue, now: float) -> None:
        """Let a reservation change its phase, and charge its tenant for the slots that it held idle."""
        reservation = pool_queue.reservation
        slot_seconds = reservation.advance(now)
        if slot_seconds and reservation.ticket is not None:
            demand = reservation.ticket.demand
            self.slot_seconds[demand.tenant] += slot_seconds
            pool_queue.order.charge_held(demand.tenant, demand.priority, slot_seconds)

    def regroup(self) -> None:
        """Move open charges to the orders that their pools belong to now.

        While a pool serves no model or does not admit, no other request could use its quarantined slots. So
        their tenants are not charged for them any more.
        """
        for charge, pool in list(self.open_charges.items()):
            pool_queue = self._pool_queues.get(pool)
            if pool_queue is not None:
                pool_queue.order.take_charge(charge)
            if pool_queue is None or not pool.admitting:
                for slot in pool.quarantine.slots:
                    if slot.lease is not None:
                        slot.lease.slots_idle(1)

    def _released(self, pool: SlotPool, charge: Charge, lease: Lease) -> None:
        pool.give_back(lease, self._clock())
        tenant = lease.demand.tenant
        self.by_tenant[tenant] -= 1
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]
        assert lease.outcome is not None
        if lease.outcome is Outcome.UNUSED:
            charge.cancel()
            self._close(charge)
        elif lease.outcome.verified or pool not in self._pool_queues or not pool.admitting:
            self._slots_idle(pool, charge, lease.demand, lease.width, lease.width)
        self._on_released(pool)

    def _slots_idle(self, pool: SlotPool, charge: Charge, demand: Demand, width: int, slots: int) -> None:
        """Stop charging for slots of a lease, because they are idle again."""
        if charge.slots:
            charge.give_back(slots, self._clock())
            if not charge.slots:
                several = len(self._pool_queues) > 1
                self.guesses.learn(demand, charge.held / width, pool.name if several else "")
                self._close(charge)

    def _forgive(self, charge: Charge) -> None:
        """The tenant does not pay for slot time in which its backend died, also if the charge is closed."""
        if charge.slots:
            charge.cancel()
            self._close(charge)
        else:
            self.slot_seconds[charge.account.tenant] -= charge.held
            charge.forgive()
            charge.account.restate()

    def _close(self, charge: Charge) -> None:
        del self.open_charges[charge]
        self.slot_seconds[charge.account.tenant] += charge.held
        charge.account.order.ended(charge)
