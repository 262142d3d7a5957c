"""Estimates how long a ticket will wait, by the order that is really used.

A ticket is served when the clock of its tenant is the least. So before it come those tickets of other tenants
whose clocks will show less by then: of a tenant with many tickets only as many as its share allows. A quiet
tenant beside a flood is told its own wait, and one with slow requests a longer one than its quick neighbour.

The estimate takes the queue as it is now: tickets come and go. Of very many flows only some are looked at.
This module is pure; the times are arguments.
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
"""Flows of other tenants that are looked at."""


@dataclass(frozen=True, slots=True)
class ExpectedWait:
    position: int
    """1 for the ticket that is next."""
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
    """Return the seconds until the first slot becomes free. A lease that overran takes as long again."""
    if any(pool.free for pool in pools):
        return 0.0
    leases = (lease for pool in pools for lease in pool.leases)
    return min((abs(lease.granted_at + lease.expected_s - now) for lease in leases), default=0.0)
