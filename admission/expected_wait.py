"""Estimates how long a ticket will wait, by the order that is really used.

A ticket is served when its tenant's clock shows least. Tickets of other tenants come before it only as long
as those tenants' clocks show less, so of many tickets of one tenant only as many count as its share allows. A
quiet tenant beside a flood therefore gets a short estimate, and a tenant with slow requests a longer one than
a tenant with quick ones.

The estimate is made from the queue as it is now, and changes as tickets come and go. If there are very many
flows, only a sample is looked at. This module is pure; the times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from slotgate.admission.demand import Priority
from slotgate.admission.fair_order import BATCH_TURN, FairOrder
from slotgate.admission.flow import Flow
from slotgate.admission.pool import SlotPool

__all__ = ["ExpectedWait", "expected_wait"]

_LOOKED_AT = 400
"""The number of flows of other tenants that are looked at, about."""


@dataclass(frozen=True, slots=True)
class ExpectedWait:
    position: int
    """The position in the queue; 1 is next."""
    seconds: float


def expected_wait(
    order: FairOrder,
    tenant: str,
    priority: Priority,
    *,
    value: float,
    before: int,
    guess: float,
    rivals: Sequence[Flow],
    pools: Iterable[SlotPool],
    now: float,
) -> ExpectedWait:
    """Return the expected wait of a ticket of `tenant`, whose clock shows `value`.

    It has `before` tickets of its own tenant before it, which take `guess` slot-seconds each, as it does.
    """
    due_at = value + before * guess / order.weight(tenant)
    position, work = before + 1, before * guess
    contested = False
    step = 1 + len(rivals) // _LOOKED_AT
    for flow in islice(rivals, 0, None, step):
        if flow.account.tenant == tenant:
            continue
        if flow.priority is not priority:
            contested = True
            continue
        each = flow.head.guess
        turn = each / order.weight(flow.account.tenant)
        turns = math.ceil((due_at - flow.value) / turn) if turn > 0 else len(flow.tickets)
        count = step * max(0, min(len(flow.tickets), turns))
        position += count
        work += count * each
    if contested and priority is Priority.BATCH:
        work = (work + guess) * (1 + order.interactive_per_batch)
        position += round(position * BATCH_TURN)
    pools = [pool for pool in pools if pool.admitting]
    slots = sum(pool.total for pool in pools)
    return ExpectedWait(position, _first_end_s(pools, now) + work / max(1, slots))


def _first_end_s(pools: Sequence[SlotPool], now: float) -> float:
    """Return the seconds until the first slot becomes free.

    A lease that overran is expected to do so again.
    """
    if any(pool.free for pool in pools):
        return 0.0
    leases = (lease for pool in pools for lease in pool.leases)
    return min((abs(lease.granted_at + lease.expected_s - now) for lease in leases), default=0.0)
