"""Which tickets leave a queue that is full: those of the tenant that has most in it.

A bound that refuses the newcomer lets one tenant shut all others out: with eight bodies of 32 MiB, or with
as many requests as it may have. So when a queue is full, the tenant that uses most of it loses its newest
ticket, until what is left fits. The newcomer is refused only if its own tenant is the one that uses most,
itself counted in. In this way every tenant is sure of an equal part, and what it leaves free is there for
the others.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slotgate.admission.ticket import Ticket

__all__ = ["make_room"]


def make_room(
    newcomer: Ticket,
    newest_first: Callable[[], Iterable[Ticket]],
    used: Mapping[str, int],
    limit: int,
    size: Callable[[Ticket], int] = lambda _: 1,
) -> list[Ticket] | None:
    """Return the tickets that leave so that `limit` is kept, or None if the newcomer is refused.

    `used` is what each tenant uses, the newcomer counted in. `newest_first` yields the tickets that wait.
    """
    excess = sum(used.values()) - limit
    if excess <= 0:
        return []
    left = dict(used)
    if left[newcomer.demand.tenant] >= max(left.values()):
        return None
    by_tenant: dict[str, list[Ticket]] = {}
    for ticket in newest_first():
        if size(ticket):
            by_tenant.setdefault(ticket.demand.tenant, []).append(ticket)
    for tickets in by_tenant.values():
        tickets.reverse()
    leaving = []
    while excess > 0:
        tenant = max(left, key=lambda name: left[name])
        if left[newcomer.demand.tenant] >= left[tenant]:
            return None
        ticket = by_tenant[tenant].pop()
        leaving.append(ticket)
        left[tenant] -= size(ticket)
        excess -= size(ticket)
    return leaving
