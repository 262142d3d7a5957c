"""The application: the one place that knows everybody.

    stack (outermost first) -> router -> endpoint

A request is handled by the raw ASGI callables below and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.admin.console import Console
from slotgate.gateway.admin.handlers.admin import (
    BackendOrder,
    CancelAny,
    PrometheusText,
    Reload,
    Requests,
    Status,
)
from slotgate.gateway.admin.handlers.events import Events
from slotgate.gateway.admin.handlers.operator_only import OperatorOnly
from slotgate.gateway.admin.handlers.pages import Page, Redirect, StaticFile
from slotgate.gateway.admin.handlers.session import SessionState, SignIn, SignOut
from slotgate.gateway.admin.handlers.usage import UsageTotals
from slotgate.gateway.admin.orders import Operations, Orders
from slotgate.gateway.api.endpoints import ENDPOINTS, Endpoint
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.handlers.cancel import CancelRequest
from slotgate.gateway.handlers.generate import Generate
from slotgate.gateway.handlers.health import Health, Ready
from slotgate.gateway.handlers.models import ListModels, OneModel
from slotgate.gateway.handlers.native_status import Props, Slots
from slotgate.gateway.handlers.without_slot import WithoutSlot
from slotgate.gateway.http.by_method import ByMethod, unknown_path
from slotgate.gateway.http.context import Caller
from slotgate.gateway.settings import Settings
from slotgate.middleware import AccessLog, Authentication, Cors, ErrorBoundary, RequestId, Traced, WebGuard
from slotgate.middleware.authentication import presented_keys

__all__ = ["PUBLIC_PATHS", "Keys", "build_app", "routes", "stack"]

PUBLIC_PATHS = frozenset({"/health", "/ready"})
"""What needs no key."""
START = "/"
"""Needs none either, and leads to the playground."""
PLAYGROUND = "/v1/chat/completions"
"""The endpoint behind which the playground asks."""

Layer = Callable[[ASGIApp], ASGIApp]
OPERATOR_PREFIXES = ("/admin", "/metrics")
"""What needs the operator's key and no other."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Who a presented key belongs to. `operator` is None when no operator key is configured."""

    caller: Callable[[bytes], Caller | None]
    operator: Callable[[bytes], bool] | None = None
    """Whether the key of this digest is one of the operator's."""
    holds: Callable[[bytes], bool] = lambda _: True
    """Whether a key of this digest is still good."""


def routes(
    settings: Settings,
    fleet: Fleet,
    keys: Keys,
    operations: Operations | None = None,
    console: Console | None = None,
) -> list[Route]:
    reader = RequestReader(settings.server)
    if console is None:
        console = Console.of(fleet)
        console.operators.change(keys.operator)

    def handler_of(endpoint: Endpoint) -> ByMethod:
        kind = Generate if endpoint.takes_slot else WithoutSlot
        return ByMethod(POST=kind(settings, fleet, endpoint, reader))

    models = ByMethod(GET=ListModels(fleet.catalogue))
    for_operators: list[Route] = []
    if keys.operator is not None:  # else nothing of the operator's is there at all
        for_operators += _operators(settings, fleet, operations or Operations(), console, reader)
        for_operators += _pages(console)
    return [
        *(
            Route(path, served)
            for endpoint in ENDPOINTS
            for served in (handler_of(endpoint),)
            for path in endpoint.paths
        ),
        Route("/v1/requests/{id}/cancel", ByMethod(POST=CancelRequest(fleet.live))),
        *_native_status(settings, fleet),
        Route("/v1/models", models),
        Route("/models", models),
        Route("/v1/models/{id:path}", ByMethod(GET=OneModel(fleet.catalogue))),
        Route("/health", ByMethod(GET=Health())),
        *for_operators,
        Route("/ready", ByMethod(GET=Ready(fleet))),
    ]


def _operators(
    settings: Settings, fleet: Fleet, operations: Operations, console: Console, reader: RequestReader
) -> list[Route]:
    def route(path: str, **endpoints: ASGIApp) -> Route:
        guarded = {
            method: OperatorOnly(endpoint, console.operators, presented_keys)
            for method, endpoint in endpoints.items()
        }
        return Route(path, ByMethod(**guarded))

    stall_timeout_s = settings.streaming.client_stall_timeout_s
    events = Events(console.board, console.operators, stall_timeout_s=stall_timeout_s)
    [chat] = [endpoint for endpoint in ENDPOINTS if PLAYGROUND in endpoint.paths]
    return [
        route("/metrics", GET=PrometheusText(fleet.metrics)),
        route("/admin/status", GET=Status(fleet, operations.orders)),
        route("/admin/events", GET=events),
        route("/admin/requests", GET=Requests(fleet)),
        route("/admin/requests/{id}/cancel", POST=CancelAny(fleet.live)),
        route("/admin/usage", GET=UsageTotals(fleet.usage)),
        route("/admin/chat/completions", POST=Generate(settings, fleet, chat, reader)),
        *_orders(route, fleet, operations.orders),
        route("/admin/reload", POST=Reload(operations)),
    ]


def _pages(console: Console) -> list[Route]:
    """What needs no key: the pages ask for it."""
    operators, pages = console.operators, console.pages

    session = ByMethod(GET=SessionState(operators), POST=SignIn(operators), DELETE=SignOut(operators))
    return [
        Route("/admin", ByMethod(GET=Page(pages.page("dashboard.html")))),
        Route("/admin/chat", ByMethod(GET=Page(pages.page("chat.html")))),
        Route("/admin/static/{name}", ByMethod(GET=StaticFile(pages))),
        Route("/admin/session", session),
        Route(START, ByMethod(GET=Redirect(b"/admin/chat"))),
    ]


def _orders(route: Callable[..., Route], fleet: Fleet, orders: Orders | None) -> list[Route]:
    if orders is None:
        return []
    each = {
        "drain": orders.drain,
        "resume": orders.resume,
        "load": orders.load,
        "unload": orders.unload,
        "restart": orders.restart,
    }
    return [
        route(f"/admin/backends/{{name}}/{word}", POST=BackendOrder(fleet, orders, order))
        for word, order in each.items()
    ]


def _native_status(settings: Settings, fleet: Fleet) -> list[Route]:
    shown: list[Route] = []
    if settings.server.expose_props:
        shown.append(Route("/props", ByMethod(GET=Props(fleet.catalogue))))
    if settings.server.expose_slots:
        shown.append(Route("/slots", ByMethod(GET=Slots(fleet.catalogue))))
    return shown


def stack(settings: Settings, fleet: Fleet, keys: Keys) -> list[Layer]:
    """Every layer a request passes, outermost first."""
    server = settings.server
    layers: list[Layer] = [RequestId]
    if (trace := fleet.trace) is not None:
        layers.append(lambda app: Traced(app, trace, left_out=(*PUBLIC_PATHS, *OPERATOR_PREFIXES)))
    layers.append(lambda app: AccessLog(app, fleet.ended, fleet.log_limiter))
    if server.cors_origins:
        layers.append(lambda app: Cors(app, server.cors_origins))
    layers.append(ErrorBoundary)
    if settings.anonymous:
        layers.append(
            lambda app: WebGuard(
                app,
                allowed_hosts=server.allowed_hosts,
                allowed_origins=server.cors_origins,
                public_paths=PUBLIC_PATHS,
            )
        )
    else:
        layers.append(
            lambda app: Authentication(
                app,
                keys.caller,
                public_paths=PUBLIC_PATHS | {START},
                operator_prefixes=OPERATOR_PREFIXES,
            )
        )
    return layers


def build_app(
    settings: Settings,
    fleet: Fleet,
    keys: Keys,
    operations: Operations | None = None,
    console: Console | None = None,
) -> ASGIApp:
    """Without a console, what operators see begins and ends with this application."""
    served = routes(settings, fleet, keys, operations, console)
    app: ASGIApp = Router(served, redirect_slashes=False, default=unknown_path)
    for layer in reversed(stack(settings, fleet, keys)):
        app = layer(app)
    return _http_only(app)


def _http_only(app: ASGIApp) -> ASGIApp:
    async def http_only(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await app(scope, receive, send)

    return http_only
