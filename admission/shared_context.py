"""The tokens of a context that all slots of a pool share (llama-server's unified KV cache).

When such a context is full, llama-server ends all running requests. So a lease takes tokens of it, too, and a
request that would not fit waits. A request states two numbers:

    most      its prompt and the longest answer that it may have
    likely    its prompt and an answer as long as earlier answers of its kind; `most` where nothing is learnt

Agents ask for 32,000 tokens and take 500, so `most` for each would leave most of the context and the slots
unused. Requests are granted by `likely`, and room is kept for the worst:

    sum of likely + min(largest (most - likely), a quarter of the context) <= context

A lease that has grown beyond `likely` is expected to grow to `most`. From then on nothing is granted for
which that leaves no room, and other requests end before the long one needs theirs. If the context is nearly
full all the same, one request has to end, so that llama-server does not end them all: `overgrown` names it.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotgate.admission.lease import Lease

__all__ = ["ContextNeed", "fits", "overgrown", "room"]

_KEPT_PART = 4
"""A context is divided by this: so much is kept at most for an answer that grows longer than expected."""
_NEARLY_FULL = 0.97
_LOOKS = 2
"""The growth until the next look is counted twice, because a look can be late."""


@dataclass(frozen=True, slots=True)
class ContextNeed:
    """Tokens of a shared context that a request takes."""

    likely: int
    most: int


def room(context: int, leases: Iterable[Lease], quarantined: int) -> int:
    """Return the tokens that are not taken. `quarantined` are those of requests that may still run.

    The result is below zero if the context shrank, or if a request grew beyond what was expected.
    """
    return context - quarantined - sum(lease.tokens for lease in leases)


def fits(context: int, need: ContextNeed, leases: Iterable[Lease], quarantined: int) -> bool:
    """Return True if a request may run beside these leases."""
    leases = list(leases)
    growths = [lease.most_tokens - lease.tokens for lease in leases]
    growth = max([need.most - need.likely, *growths]) if growths else 0
    growth = min(growth, context // _KEPT_PART)
    return need.likely + growth <= room(context, leases, quarantined)


def overgrown(context: int, leases: Iterable[Lease], quarantined: int = 0) -> Lease | None:
    """Return the lease that should end because the context is nearly full, or None.

    It is nearly full if it will be at the next look, should the answers grow as fast as since the last one.
    The lease is the one that has outgrown its likely need most.
    """
    leases = list(leases)
    if len(leases) < 2 or quarantined + sum(lease.most_tokens for lease in leases) <= context:
        return None  # it cannot become full
    soon = quarantined
    for lease in leases:
        soon += max(lease.used_tokens, min(lease.used_tokens + _LOOKS * lease.growth, lease.most_tokens))
    if soon < _NEARLY_FULL * context:
        return None
    return max(leases, key=lambda lease: lease.used_tokens - lease.likely_tokens)
