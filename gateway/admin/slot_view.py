"""The slots of each backend as a row of cells for the dashboard, each cell with the request that uses it.

llama-server does not say which slot a request got, so cells are assigned here. A lease gets the first free
cell and keeps it until it ends. A slot in quarantine gets a cell that an ended lease has just left.
This module never awaits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slotgate.admission import Lease, SlotPool
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.context import RequestContext

__all__ = ["LeaseHolders", "SlotView"]

LeaseHolders = Mapping[Lease, tuple[RequestContext, Progress]]
"""Lease -> the request that holds it."""


@dataclass(slots=True)
class CellContent:
    """The content of one cell that is not idle."""

    key: Hashable
    """Stays the same from snapshot to snapshot while the same work uses the slot."""
    shown: dict[str, Any]


@dataclass(slots=True)
class SlotView:
    """Remembers which cell each lease has, so that nothing jumps from snapshot to snapshot."""

    _rows: dict[str, list[Hashable | None]] = field(default_factory=dict)
    """Pool name -> the key of each cell's content, or None for an idle cell."""

    def row(self, pool: SlotPool, holders: LeaseHolders, now: float) -> list[dict[str, Any]]:
        """Return the cells of a backend, one for each slot.

        There are more cells than slots only if the backend has shrunk while requests ran.
        """
        contents = _contents(pool, holders, now)
        before = self._rows.get(pool.name, [])
        present = {content.key for content in contents}
        row = [key if key in present else None for key in before]
        vacated = [number for number, key in enumerate(before) if key is not None and key not in present]
        shown = {content.key: content.shown for content in contents}
        for content in contents:
            if content.key not in row:
                _assign(row, content.key, vacated if content.shown["state"] == "quarantined" else [])
        last = max((number for number, key in enumerate(row, 1) if key is not None), default=0)
        row = (row + [None] * pool.total)[: max(pool.total, last)]
        self._rows[pool.name] = row
        return [{"state": "idle"} if key is None else shown[key] for key in row]

    def keep_only(self, pools: set[str]) -> None:
        """Forget the rows of all other pools."""
        self._rows = {name: row for name, row in self._rows.items() if name in pools}


def _assign(row: list[Hashable | None], key: Hashable, preferred: list[int]) -> None:
    free = [number for number in preferred if row[number] is None]
    free += [number for number, taken in enumerate(row) if taken is None]
    if free:
        row[free[0]] = key
    else:
        row.append(key)


def _contents(pool: SlotPool, holders: LeaseHolders, now: float) -> list[CellContent]:
    found: list[CellContent] = []
    for number, slot in enumerate(pool.quarantine.slots):
        same = sum(other.closed_at == slot.closed_at for other in pool.quarantine.slots[:number])
        shown = {"state": "quarantined", "age_s": round(now - slot.closed_at, 1)}
        found.append(CellContent(("quarantined", slot.closed_at, same), shown))
    for unclean, since in pool.unclean.items():
        shown = {"state": "quarantined", "age_s": round(now - since, 1)}
        found.append(CellContent(("unclean", unclean), shown))
    for lease in pool.leases:
        shown = _leased(lease, holders.get(lease), now)
        found += [CellContent((lease, part), shown) for part in range(lease.width)]
    found += [CellContent(("foreign", number), {"state": "foreign"}) for number in range(pool.foreign)]
    return found


def _leased(lease: Lease, holder: tuple[RequestContext, Progress] | None, now: float) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "state": "prefill",
        "age_s": round(now - lease.granted_at, 1),
        "tenant": lease.demand.tenant,
        "model": lease.demand.model,
    }
    if holder is None:
        return shown
    context, progress = holder
    if progress.first_output_at is not None:
        shown["state"] = "generating"
    elif not context.stream:
        shown["state"] = "working"  # no output can be seen before the answer is complete
    return shown | {"request": context.id, "tokens": progress.tokens}
