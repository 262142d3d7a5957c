"""The operator's view and what an operator can do. Not there unless an operator key is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.metrics import CONTENT_TYPE, Metrics
from slotgate.gateway.admin.orders import Operations, Orders
from slotgate.gateway.admin.status import backend_status, live_requests, status_of
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.forwarding.cancel import cancel
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_json, send_whole
from slotgate.gateway.settings import SettingsError

__all__ = [
    "BackendOrder",
    "CancelAny",
    "PrometheusText",
    "Reload",
    "Requests",
    "Status",
]


class Status:
    def __init__(self, runtime: Runtime, orders: Orders | None = None) -> None:
        self._runtime = runtime
        self._orders = orders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, status_of(self._runtime, self._orders))


class PrometheusText:
    """`GET /metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_whole(send, 200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())


class Requests:
    """`GET /admin/requests`: those under way, and the last that ended; the latest first."""

    def __init__(self, in_flight: InFlight, history: History) -> None:
        self._in_flight = in_flight
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        live = live_requests(self._in_flight)
        await send_json(send, 200, {"requests": [*live, *self._history.newest(now)]})


class CancelAny:
    """`POST /admin/requests/{id}/cancel`: all live requests with that id; `?tenant=` narrows."""

    def __init__(self, live: InFlight) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = parse_qs(scope["query_string"].decode("latin-1"), encoding="utf-8").get("tenant", [None])[0]
        await cancel(self._live, scope["path_params"]["id"], tenant, send)


class BackendOrder:
    """`POST /admin/backends/{name}/drain` and the like: told to the backend, which then takes its time."""

    def __init__(self, fleet: Fleet, orders: Orders, order: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._orders = orders
        self._order = order

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        self._order(name)
        await send_json(send, 200, backend_status(self._fleet.backends[name], self._orders))


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
