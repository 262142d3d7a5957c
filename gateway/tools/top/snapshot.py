"""The values of the view, read from the documents of `/admin`.

Texts come from another machine and go to a terminal, so unprintable characters are replaced. Missing members
count as empty, so older and newer gateways can be shown. Only a document without backends and queue is
refused. This module does no IO.
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
"""The period of the token rate, if the gateway does not send live rates."""
KEPT = 200
_OVER_WORDS = frozenset({"running", "queued"})
Document = Mapping[str, Any]


class NotSlotgateError(Exception):
    """The document does not come from slotgate."""


@dataclass(frozen=True, slots=True)
class ShownSlot:
    """A slot and its state."""

    state: str
    """idle, prefill, generating, working (prefill or generating), quarantined or foreign."""
    tenant: str = ""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownBackend:
    """A backend with its slots."""

    name: str
    state: str
    reason: str
    slots: tuple[ShownSlot, ...]
    quarantined_oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownTenant:
    """A tenant with its load."""

    name: str
    leases: int
    queued: int


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """A request that is queued, running or over."""

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
    """Seconds since the end of the request; 0 before its end."""

    @property
    def is_over(self) -> bool:
        return self.outcome not in _OVER_WORDS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a gateway at one time."""

    backends: tuple[ShownBackend, ...]
    tenants: tuple[ShownTenant, ...]
    queued: int
    oldest_s: float
    requests: tuple[ShownRequest, ...]
    """Requests under way, then ended requests, the latest first."""
    tokens_per_s: float
    rate_is_live: bool
    """False if the rate was computed from the requests that ended lately."""
    draining: bool = False

    @property
    def running(self) -> int:
        return sum(request.outcome == "running" for request in self.requests)

    @property
    def ttft_ms(self) -> float | None:
        """The median time to the first token of the ended requests, or None."""
        ended = [request for request in self.requests if request.is_over]
        times = [request.ttft_ms for request in ended if request.ttft_ms is not None]
        return median(times) if times else None


def of_event(document: Document, earlier: Snapshot | None) -> Snapshot:
    """Read a frame of `/admin/events`. It has newly ended requests only; `earlier` has those before."""
    ended = [_request(facts) for facts in _list(document, "ended")]
    if earlier is not None and not document.get("full", True):
        ended += [request for request in earlier.requests if request.is_over]
    live = [_request(facts) for facts in _list(document, "live")]
    rates = document.get("rates") or {}
    return _snapshot(document, [*live, *ended], _number(rates, "tokens_per_s"), rate_is_live=True)


def of_poll(status: Document, requests: Document) -> Snapshot:
    """Read the documents of `/admin/status` and `/admin/requests`."""
    shown = [_request(facts) for facts in _list(requests, "requests")]
    recent = [each.tokens for each in shown if each.is_over and each.age_s <= RECENT_S]
    return _snapshot(status, shown, sum(recent) / RECENT_S, rate_is_live=False)


def _snapshot(status: Document, requests: list[ShownRequest], rate: float, *, rate_is_live: bool) -> Snapshot:
    if not isinstance(status.get("backends"), list) or not isinstance(status.get("queue"), dict):
        raise NotSlotgateError("the server is not slotgate, or another version of it")
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
    counts = facts.get("slots") or {}
    listed = [_slot(slot) for slot in _list(facts, "cells")]
    return ShownBackend(
        name=_text(facts, "name"),
        state=_text(facts, "state"),
        reason=_text(facts, "reason"),
        slots=tuple(listed or _counted(counts)),
        quarantined_oldest_s=_number(counts, "quarantined_oldest_s"),
    )


def _slot(facts: Document) -> ShownSlot:
    return ShownSlot(_text(facts, "state"), _text(facts, "tenant"), _number(facts, "age_s"))


def _counted(slots: Document) -> Iterable[ShownSlot]:
    """Yield slots by the counts of each state, for gateways that do not list their slots."""
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
