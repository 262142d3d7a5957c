"""The operator's view: `GET /admin/status`. Not there unless an operator key is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.backend import Backend
from gateway.context import TenantIdentity, context_of
from gateway.endpoints.by_method import unknown_path
from gateway.errors import ClientError
from gateway.fleet import Fleet
from gateway.replies import send_json

__all__ = ["OPERATOR", "OperatorOnly", "Status"]

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
            {"name": name, "leases": leases.get(name, 0), "queued": queue.by_tenant.get(name, 0)}
            for name in sorted({*fleet.tenants, *leases, *queue.by_tenant})
        ],
    }


def _backend(backend: Backend) -> dict[str, Any]:
    now = asyncio.get_running_loop().time()
    slots = backend.pool.status(now)
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
        "active": len(backend.pool.leases),
        "idle_s": round(slots.idle_s, 3),
        "leases_ended": {outcome.value: count for outcome, count in backend.pool.released.items()},
    }
