"""What is shown, as plain values: read off the documents of `/admin`, whichever the gateway serves.

Texts come from another machine and go to a terminal: what cannot be printed is replaced. A member that is
missing is nothing, so that an older or newer gateway can be looked at; only one that says nothing of backends
and queue is no slotgate. This module does no IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = [
    "NotSlotgateError",
    "ShownBackend",
    "ShownRequest",
    "ShownSlot",
    "ShownTenant",
    "Snapshot",
    "of_event",
    "of_poll",
]

RECENT_S = 30.0
"""Without live rates: tokens of requests that ended in this time."""
KEPT = 200
_OVER_WORDS = frozenset({"running", "queued"})
Document = Mapping[str, Any]


class NotSlotgateError(Exception):
    """The document is none of slotgate's."""


@dataclass(frozen=True, slots=True)
class ShownSlot:
    """One slot."""

    state: str
    """idle, prefill, generating, working (which of the two is not known), quarantined or foreign."""
    tenant: str = ""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownBackend:
    name: str
    state: str
    reason: str
    cells: tuple[ShownSlot, ...]
    quarantined_oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownTenant:
    name: str
    leases: int
    queued: int


@dataclass(frozen=True, slots=True)
class ShownRequest:
    id: str
    tenant: str
    model: str
    backend: str
    outcome: str
    code: str
    status: int | None
    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float
    tokens: int
    age_s: float
    """Since it ended; 0 while it runs."""

    @property
    def is_over(self) -> bool:
        return self.outcome not in _OVER_WORDS


@dataclass(frozen=True, slots=True)
class Snapshot:
    backends: tuple[ShownBackend, ...]
    tenants: tuple[ShownTenant, ...]
    queued: int
    oldest_s: float
    requests: tuple[ShownRequest, ...]
    """Those under way, then those that have ended, the latest first."""
    tokens_per_s: float
    rate_is_live: bool
    """False: made from the requests that have ended lately."""
    draining: bool = False

    @property
    def running(self) -> int:
        return sum(request.outcome == "running" for request in self.requests)

    @property
    def ttft_ms(self) -> float | None:
        """The median of the requests shown that said when their first token came."""
        ended = [request for request in self.requests if request.is_over]
        times = [request.ttft_ms for request in ended if request.ttft_ms is not None]
        return median(times) if times else None


def of_event(document: Document, earlier: Snapshot | None) -> Snapshot:
    """Of a frame of `/admin/events`, which tells once of each that has ended; `earlier` has those before."""
    ended = [_request(facts) for facts in _list(document, "ended")]
    if earlier is not None and not document.get("full", True):
        ended += [request for request in earlier.requests if request.is_over]
    live = [_request(facts) for facts in _list(document, "live")]
    rates = document.get("rates") or {}
    return _snapshot(document, [*live, *ended], _number(rates, "tokens_per_s"), rate_is_live=True)


def of_poll(status: Document, requests: Document) -> Snapshot:
    """Of `/admin/status` and `/admin/requests`, asked one after the other."""
    shown = [_request(facts) for facts in _list(requests, "requests")]
    recent = [each.tokens for each in shown if each.is_over and each.age_s <= RECENT_S]
    return _snapshot(status, shown, sum(recent) / RECENT_S, rate_is_live=False)


def _snapshot(status: Document, requests: list[ShownRequest], rate: float, *, rate_is_live: bool) -> Snapshot:
    if not isinstance(status.get("backends"), list) or not isinstance(status.get("queue"), dict):
        raise NotSlotgateError("what answers there is no slotgate, or another version of it")
    queue = status["queue"]
    tenants = [
        ShownTenant(_text(facts, "name"), int(_number(facts, "leases")), int(_number(facts, "queued")))
        for facts in _list(status, "tenants")
    ]
    return Snapshot(
        backends=tuple(_backend(facts) for facts in _list(status, "backends")),
        tenants=tuple(tenants),
        queued=int(_number(queue, "depth")),
        oldest_s=_number(queue, "oldest_s"),
        requests=tuple(requests[:KEPT]),
        tokens_per_s=rate,
        rate_is_live=rate_is_live,
        draining=bool(status.get("draining")),
    )


def _backend(facts: Document) -> ShownBackend:
    slots = facts.get("slots") or {}
    told = [_cell(cell) for cell in _list(facts, "cells")]
    return ShownBackend(
        name=_text(facts, "name"),
        state=_text(facts, "state"),
        reason=_text(facts, "reason"),
        cells=tuple(told or _counted(slots)),
        quarantined_oldest_s=_number(slots, "quarantined_oldest_s"),
    )


def _cell(facts: Document) -> ShownSlot:
    return ShownSlot(_text(facts, "state"), _text(facts, "tenant"), _number(facts, "age_s"))


def _counted(slots: Document) -> Iterable[ShownSlot]:
    """Where the gateway says how many are in which state, and not what each does."""
    for state, member in (
        ("working", "leased"),
        ("quarantined", "quarantined"),
        ("foreign", "foreign"),
        ("idle", "idle"),
    ):
        yield from [ShownSlot(state)] * int(_number(slots, member))


def _request(facts: Document) -> ShownRequest:
    status = facts.get("status")
    return ShownRequest(
        id=_text(facts, "id"),
        tenant=_text(facts, "tenant"),
        model=_text(facts, "model"),
        backend=_text(facts, "backend"),
        outcome=_text(facts, "outcome"),
        code=_text(facts, "code"),
        status=status if isinstance(status, int) else None,
        queue_ms=_optional(facts, "queue_ms"),
        ttft_ms=_optional(facts, "ttft_ms"),
        total_ms=_number(facts, "total_ms"),
        tokens=int(_number(facts, "completion_tokens")),
        age_s=_number(facts, "age_s"),
    )


def _list(document: Document, name: str) -> list[Document]:
    value = document.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(document: Document, name: str) -> float:
    return _optional(document, name) or 0.0


def _optional(document: Document, name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) else None


def _text(document: Document, name: str) -> str:
    value = document.get(name)
    said = value if isinstance(value, str) else ""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in said)
