"""The operator's view and what an operator can do. Not there unless an operator key is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from admission import Limiter
from gateway.backend import Backend
from gateway.context import TenantIdentity, context_of
from gateway.endpoints.by_method import unknown_path
from gateway.endpoints.requests import cancel
from gateway.errors import ClientError
from gateway.fleet import Fleet
from gateway.live import LiveAnswers
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.operations import Operations
from gateway.replies import send_json, send_whole
from gateway.settings import SettingsError

__all__ = [
    "OPERATOR",
    "BackendOrder",
    "CancelAny",
    "OperatorOnly",
    "PrometheusText",
    "Reload",
    "Requests",
    "Status",
]

OPERATOR = TenantIdentity("operator", models=())


class OperatorOnly:
    """Guards an endpoint. `is_operator` is None when no operator key is configured."""

    def __init__(
        self,
        app: ASGIApp,
        is_operator: Callable[[bytes], bool] | None,
        presented_keys: Callable[[Scope], list[bytes]],
    ) -> None:
        self._app = app
        self._is_operator = is_operator
        self._presented_keys = presented_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_operator is None:
            await unknown_path(scope, receive, send)
            return
        keys = self._presented_keys(scope)
        if len(keys) != 1 or not self._is_operator(keys[0]):
            message = "this needs the operator key"
            raise ClientError("invalid_api_key", message, status=401, kind="authentication_error")
        context_of(scope).tenant = OPERATOR
        await self._app(scope, receive, send)


class Status:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, status_of(self._fleet))


class PrometheusText:
    """`GET /metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_whole(send, 200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())


class Requests:
    """`GET /admin/requests`: those under way, and the last that ended; the latest first."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        live = [
            context.facts(now) | {"outcome": "running" if context.granted_at is not None else "queued"}
            for context in self._fleet.live.contexts
        ]
        await send_json(send, 200, {"requests": [*live, *self._fleet.history.newest(now)]})


class CancelAny:
    """`POST /admin/requests/{id}/cancel`: all live requests with that id; `?tenant=` narrows."""

    def __init__(self, live: LiveAnswers) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = parse_qs(scope["query_string"].decode("latin-1"), encoding="utf-8").get("tenant", [None])[0]
        await cancel(self._live, scope["path_params"]["id"], tenant, send)


class BackendOrder:
    """`POST /admin/backends/{name}/drain` and the like: told to the backend, which then takes its time."""

    def __init__(self, fleet: Fleet, order: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._order = order

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        self._order(name)
        await send_json(send, 200, _backend(self._fleet.backends[name]))


class Reload:
    """`POST /admin/reload`: the configuration is read again, and applied whole or not at all."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reload = self._operations.reload
        if reload is None:
            message = "this gateway runs without a configuration file"
            raise ClientError("nothing_to_reload", message, status=409)
        try:
            report = await reload()
        except SettingsError as error:
            raise ClientError("invalid_configuration", str(error), status=400) from error
        done = {"reloaded": True, "needs_restart": report.needs_restart, "revoked": report.revoked}
        await send_json(send, 200, done)


def status_of(fleet: Fleet) -> dict[str, Any]:
    queue = fleet.scheduler.status()
    leases = fleet.scheduler.leases_by_tenant
    return {
        "models": [
            {
                "name": model.name,
                "aliases": model.aliases,
                "backends": [backend.name for backend in model.backends],
            }
            for model in fleet.catalogue.models.values()
        ],
        "backends": [_backend(backend) for backend in fleet.backends.values()],
        "queue": {"depth": queue.depth, "by_tenant": queue.by_tenant, "oldest_s": round(queue.oldest_s, 3)},
        "tenants": [
            {
                "name": name,
                "leases": leases.get(name, 0),
                "queued": queue.by_tenant.get(name, 0),
                **_limits(fleet.limiter, name),
            }
            for name in sorted({*fleet.tenants, *leases, *queue.by_tenant})
        ],
    }


def _limits(limiter: Limiter, tenant: str) -> dict[str, Any]:
    """What is left of the tenant's limits, for one that has any."""
    left: dict[str, Any] = {}
    for name, state in (("requests", limiter.requests_of(tenant)), ("tokens", limiter.tokens_of(tenant))):
        if state is not None:
            left[f"{name}_per_minute"] = {"limit": state.limit, "remaining": state.remaining}
    quota = limiter.quota_of(tenant)
    if quota is not None:
        left["tokens_per_day"] = {"limit": quota, "used": round(limiter.used_today(tenant))}
    return {"limits": left} if left else {}


def _backend(backend: Backend) -> dict[str, Any]:
    now = asyncio.get_running_loop().time()
    slots = backend.pool.status(now)
    context = backend.pool.context
    return {
        "name": backend.name,
        "url": str(backend.base_url),
        "state": backend.state.value,
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
    }
