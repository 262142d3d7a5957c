"""The operators' endpoints for status, metrics, requests and actions.

They exist only if an operator key is configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from slotgate.gateway.admin.actions import BackendActions, ReloadReport
from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.metrics import CONTENT_TYPE, Metrics
from slotgate.gateway.admin.status import backend_status, live_requests, status_of
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.forwarding.cancel import cancel
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_json, send_whole
from slotgate.gateway.settings import SettingsError

__all__ = [
    "CancelAny",
    "PrometheusText",
    "Reload",
    "Requests",
    "RunBackendAction",
    "Status",
]


class Status:
    """`GET /admin/status`: models, backends, queue and tenants as they are now."""

    def __init__(self, runtime: Runtime, actions: BackendActions | None = None) -> None:
        self._runtime = runtime
        self._actions = actions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, status_of(self._runtime, self._actions))


class PrometheusText:
    """`GET /metrics`: all metrics in the text format of Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_whole(send, 200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())


class Requests:
    """`GET /admin/requests`: the live requests, then the last ended ones. The newest come first."""

    def __init__(self, in_flight: InFlight, history: History) -> None:
        self._in_flight = in_flight
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        live = live_requests(self._in_flight)
        await send_json(send, 200, {"requests": [*live, *self._history.newest(now)]})


class CancelAny:
    """`POST /admin/requests/{id}/cancel`: cancels all live requests with that id.

    Tenants choose their own ids, so two tenants may use the same one. `?tenant=` selects one tenant.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = parse_qs(scope["query_string"].decode("latin-1"), encoding="utf-8").get("tenant", [None])[0]
        await cancel(self._in_flight, scope["path_params"]["id"], tenant, send)


class RunBackendAction:
    """`POST /admin/backends/{name}/drain` and the other actions.

    Answers with the backend's status as soon as the action has begun, because an unload can take minutes.
    """

    def __init__(self, fleet: Fleet, actions: BackendActions, action: Callable[[str], None]) -> None:
        """`action` is the method of `actions` that this endpoint calls with the backend's name."""
        self._fleet = fleet
        self._actions = actions
        self._action = action

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        self._action(name)
        await send_json(send, 200, backend_status(self._fleet.backends[name], self._actions))


class Reload:
    """`POST /admin/reload`: reads the configuration again. All of it is applied, or nothing."""

    def __init__(self, reload: Callable[[], Awaitable[ReloadReport]] | None) -> None:
        """`reload` is None if there is no configuration file; then every request gets 409."""
        self._reload = reload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._reload is None:
            message = "this gateway runs without a configuration file"
            raise ClientError("nothing_to_reload", message, status=409)
        try:
            report = await self._reload()
        except SettingsError as error:
            raise ClientError("invalid_configuration", str(error), status=400) from error
        done = {"reloaded": True, **asdict(report)}
        await send_json(send, 200, done)
