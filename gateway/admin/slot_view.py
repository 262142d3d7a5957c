"""The slots of a backend as a row of cells, each with what is in it, for people who look.

llama-server does not say which slot a request got, so the cells are numbered here: who takes a slot gets the
first free cell and stays in it, and a slot that is quarantined takes a cell that its request has just left.
This module never awaits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slotgate.admission import Lease, SlotPool
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.context import RequestContext

__all__ = ["SlotView"]

Held = Mapping[Lease, tuple[RequestContext, Progress]]
"""Whose lease it is."""


@dataclass(slots=True)
class Occupant:
    """Of one cell."""

    name: Hashable
    """The same as long as it is the same."""
    shown: dict[str, Any]


@dataclass(slots=True)
class SlotView:
    """The rows of all backends, by the names of their pools."""

    _rows: dict[str, list[Hashable | None]] = field(default_factory=dict)

    def row(self, pool: SlotPool, held: Held, now: float) -> list[dict[str, Any]]:
        """The backend's cells, as many as it has slots; more only while it has shrunk under its work."""
        occupants = _occupants(pool, held, now)
        before = self._rows.get(pool.name, [])
        here = {occupant.name for occupant in occupants}
        row = [name if name in here else None for name in before]
        left = [number for number, name in enumerate(before) if name is not None and name not in here]
        shown = {occupant.name: occupant.shown for occupant in occupants}
        for occupant in occupants:
            if occupant.name not in row:
                _seat(row, occupant.name, left if occupant.shown["state"] == "quarantined" else [])
        last = max((number for number, name in enumerate(row, 1) if name is not None), default=0)
        row = (row + [None] * pool.total)[: max(pool.total, last)]
        self._rows[pool.name] = row
        return [{"state": "idle"} if name is None else shown[name] for name in row]

    def forget(self, pools: set[str]) -> None:
        """Keep the rows of these pools only."""
        self._rows = {name: row for name, row in self._rows.items() if name in pools}


def _seat(row: list[Hashable | None], name: Hashable, preferred: list[int]) -> None:
    free = [number for number in preferred if row[number] is None]
    free += [number for number, taken in enumerate(row) if taken is None]
    if free:
        row[free[0]] = name
    else:
        row.append(name)


def _occupants(pool: SlotPool, held: Held, now: float) -> list[Occupant]:
    found: list[Occupant] = []
    for number, slot in enumerate(pool.quarantine.slots):
        same = sum(other.closed_at == slot.closed_at for other in pool.quarantine.slots[:number])
        shown = {"state": "quarantined", "age_s": round(now - slot.closed_at, 1)}
        found.append(Occupant(("quarantined", slot.closed_at, same), shown))
    for unclean, since in pool.unclean.items():
        shown = {"state": "quarantined", "age_s": round(now - since, 1)}
        found.append(Occupant(("unclean", unclean), shown))
    for lease in pool.leases:
        shown = _leased(lease, held.get(lease), now)
        found += [Occupant((lease, part), shown) for part in range(lease.width)]
    found += [Occupant(("foreign", number), {"state": "foreign"}) for number in range(pool.foreign)]
    return found


def _leased(lease: Lease, whose: tuple[RequestContext, Progress] | None, now: float) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "state": "prefill",
        "age_s": round(now - lease.granted_at, 1),
        "tenant": lease.demand.tenant,
        "model": lease.demand.model,
    }
    if whose is None:
        return shown
    context, progress = whose
    if progress.first_output_at is not None:
        shown["state"] = "generating"
    elif not context.stream:
        shown["state"] = "working"  # and says nothing before its end
    return shown | {"request": context.id, "tokens": progress.tokens}
