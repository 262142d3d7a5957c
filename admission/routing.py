"""Connects pools and models: which queues exist, and which pools share one fair order.

A pool belongs to the same `FairOrder` as every pool that it shares a model with, directly or through others.
So a tenant that may use several of them has one share. This module is pure; the times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slotgate.admission.fair_order import FairOrder
from slotgate.admission.pool import SlotPool
from slotgate.admission.queues import ModelQueue, PoolQueue

__all__ = ["reroute", "served_models"]


def served_models(routes: Mapping[str, Iterable[SlotPool]]) -> dict[str, tuple[SlotPool, ...]]:
    """Return the models that have pools, with each pool once."""
    pools = {model: tuple(dict.fromkeys(served)) for model, served in routes.items()}
    return {model: served for model, served in pools.items() if served}


def reroute(
    routes: Mapping[str, Sequence[SlotPool]],
    model_queues: dict[str, ModelQueue],
    pool_queues: dict[SlotPool, PoolQueue],
    weights: Mapping[str, float],
    now: float,
) -> None:
    """Change both mappings so that they serve these routes. Tickets keep the places that they have.

    `model_queues` may not have a model without a route, because its tickets would be lost.
    """
    connected = _connect(routes, pool_queues, weights)
    pool_queues.clear()
    pool_queues.update(connected)
    for model, served in routes.items():
        model_queue = model_queues.setdefault(model, ModelQueue())
        model_queue.route_to((pool_queues[pool] for pool in served), now)
        for pool_queue in model_queue.pool_queues:
            pool_queue.model_queues.append(model_queue)
    for model_queue in model_queues.values():
        model_queue.settle_in(now)


def _connect(
    routes: Mapping[str, Sequence[SlotPool]],
    before: Mapping[SlotPool, PoolQueue],
    weights: Mapping[str, float],
) -> dict[SlotPool, PoolQueue]:
    """Return the queues of all pools that serve models. Pools that serve a common model get one fair order.

    Pools keep their queues, and orders are kept where possible. If pools of several orders become connected,
    or the pools of one order are separated, the tenants keep the state of their clocks.
    """
    leader: dict[SlotPool, SlotPool] = {}

    def find(pool: SlotPool) -> SlotPool:
        while leader.setdefault(pool, pool) is not pool:
            pool = leader[pool]
        return pool

    for pools in routes.values():
        for pool in pools:
            leader[find(pool)] = find(pools[0])
    groups: dict[SlotPool, list[SlotPool]] = {}
    for pool in list(leader):
        groups.setdefault(find(pool), []).append(pool)
    taken: set[FairOrder] = set()
    queues: dict[SlotPool, PoolQueue] = {}
    for group in groups.values():
        orders = list(dict.fromkeys(before[pool].order for pool in group if pool in before))
        order = next((order for order in orders if order not in taken), None) or FairOrder(weights)
        taken.add(order)
        for other in orders:
            if other is not order:
                order.take_over(other)
        for pool in group:
            queue = before.get(pool) or PoolQueue(pool, order)
            queue.order = order
            queue.model_queues = []
            queues[pool] = queue
    return queues
