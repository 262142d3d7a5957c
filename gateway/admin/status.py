"""The status of a gateway as plain values, read when an operator asks for it.

`/admin/status`, the live events and the answers to actions use these functions, so they agree.
This module never awaits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from slotgate.admission import Limiter
from slotgate.gateway.admin.actions import BackendActions
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.forwarding.in_flight import InFlight, Progress
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext

__all__ = ["backend_status", "live_requests", "status_of"]


def status_of(runtime: Runtime, actions: BackendActions | None = None) -> dict[str, Any]:
    """Return the body of `/admin/status`: models, backends, queue and tenants."""
    fleet, scheduler = runtime.fleet, runtime.scheduler
    queue = scheduler.status()
    leases = scheduler.leases_by_tenant
    return {
        "draining": scheduler.draining,
        "models": [
            {
                "name": model.name,
                "aliases": model.aliases,
                "backends": [backend.name for backend in model.backends],
            }
            for model in fleet.catalogue.models.values()
        ],
        "backends": [backend_status(backend, actions) for backend in fleet.backends.values()],
        "queue": {"depth": queue.depth, "by_tenant": queue.by_tenant, "oldest_s": round(queue.oldest_s, 3)},
        "tenants": [
            {
                "name": name,
                "leases": leases.get(name, 0),
                "queued": queue.by_tenant.get(name, 0),
                **_limits(runtime.limiter, name),
            }
            for name in sorted({*runtime.tenants, *leases, *queue.by_tenant})
        ],
    }


def backend_status(backend: Backend, actions: BackendActions | None = None) -> dict[str, Any]:
    """Return the state of one backend, its slots, and the names of the actions that are possible now."""
    now = asyncio.get_running_loop().time()
    slots = backend.pool.status(now)
    context = backend.pool.context
    return {
        "name": backend.name,
        "url": str(backend.base_url),
        "state": backend.state.label,
        "reason": backend.explanation,
        "slots": {
            "total": slots.total,
            "idle": slots.idle,
            "leased": slots.leased,
            "quarantined": slots.quarantined,
            "quarantined_oldest_s": round(slots.quarantined_oldest_s, 3),
            "foreign": slots.foreign,
        },
        **({"context": {"total": context, "free": backend.pool.room}} if context else {}),
        "active": len(backend.pool.leases),
        "idle_s": round(slots.idle_s, 3),
        "leases_ended": {outcome.value: count for outcome, count in backend.pool.released.items()},
        "orders": actions.possible(backend.name) if actions is not None else (),
    }


def live_requests(in_flight: InFlight, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the facts of the live requests so far, the newest request first; at most `limit` of them."""
    now = asyncio.get_running_loop().time()
    return [_facts_so_far(context, answer.progress(), now) for answer, context in in_flight.answers[:limit]]


def _facts_so_far(context: RequestContext, progress: Progress, now: float) -> dict[str, Any]:
    first = progress.first_output_at
    return context.facts(now) | {
        "outcome": "running" if context.granted_at is not None else "queued",
        "ttft_ms": None if first is None else round((first - context.began_at) * 1000, 1),
        "prompt_tokens": progress.prompt_tokens,
        "cached_tokens": progress.cached_tokens,
        "completion_tokens": progress.tokens,
    }


def _limits(limiter: Limiter, tenant: str) -> dict[str, Any]:
    """Return `{"limits": …}` with the rest of each limit, or an empty dict for a tenant without limits."""
    left: dict[str, Any] = {}
    for name, state in (("requests", limiter.requests_of(tenant)), ("tokens", limiter.tokens_of(tenant))):
        if state is not None:
            left[f"{name}_per_minute"] = {"limit": state.limit, "remaining": state.remaining}
    quota = limiter.quota_of(tenant)
    if quota is not None:
        left["tokens_per_day"] = {"limit": quota, "used": round(limiter.used_today(tenant))}
    return {"limits": left} if left else {}
