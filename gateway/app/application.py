"""The ASGI application: every path with its handler, and the middleware around them.

    middleware stack (outermost first) -> router -> handler

All of them are plain ASGI callables. No framework code stands between them and the server.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.admin.actions import BackendActions, OperatorActions
from slotgate.gateway.admin.console import Console
from slotgate.gateway.admin.handlers.admin import (
    CancelAny,
    PrometheusText,
    Reload,
    Requests,
    RunBackendAction,
    Status,
)
from slotgate.gateway.admin.handlers.events import Events
from slotgate.gateway.admin.handlers.operator_only import OperatorOnly
from slotgate.gateway.admin.handlers.pages import Page, Redirect, StaticFile
from slotgate.gateway.admin.handlers.session import SessionState, SignIn, SignOut
from slotgate.gateway.admin.handlers.usage import UsageTotals
from slotgate.gateway.api.endpoints import ENDPOINTS, Endpoint
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.handlers.cancel import CancelRequest
from slotgate.gateway.handlers.generate import Generate
from slotgate.gateway.handlers.health import Health, Ready
from slotgate.gateway.handlers.models import ListModels, OneModel
from slotgate.gateway.handlers.native_status import Props, Slots
from slotgate.gateway.handlers.without_slot import WithoutSlot
from slotgate.gateway.http.by_method import ByMethod, unknown_path
from slotgate.gateway.settings import Settings
from slotgate.middleware import (
    AccessLog,
    Authentication,
    Cors,
    ErrorBoundary,
    LoopGuard,
    RequestId,
    Traced,
    WebGuard,
)
from slotgate.middleware.authentication import presented_keys

__all__ = ["PUBLIC_PATHS", "RESERVED_PATHS", "build_app", "routes", "stack"]

HEALTH_PATHS = ("/health", "/v1/health")
PUBLIC_PATHS = frozenset({*HEALTH_PATHS, "/ready"})
"""Paths that need no key."""
START = "/"
"""Needs no key either. It redirects to the playground."""
PLAYGROUND_ENDPOINT = "/v1/chat/completions"
"""The endpoint that the playground uses, at an operators' path."""

RESERVED_PATHS = tuple(path.encode() for path in (*sorted(PUBLIC_PATHS), "/admin", "/metrics"))
"""Paths that are served while all connections are in use: those of health checks and of operators."""

Layer = Callable[[ASGIApp], ASGIApp]
OPERATOR_PREFIXES = ("/admin", "/metrics")
"""Paths that need an operator key. A tenant's key is not enough."""


def routes(
    settings: Settings, parts: Composition, identities: Identities, actions: OperatorActions | None = None
) -> list[Route]:
    """Return all paths with their handlers. The operators' paths exist only if there is an operator key."""
    reader = RequestReader(settings.server)
    runtime, fleet = parts.runtime, parts.runtime.fleet

    def handler_of(endpoint: Endpoint) -> ByMethod:
        if endpoint.takes_slot:
            return ByMethod(POST=Generate(settings, runtime, endpoint, reader))
        return ByMethod(POST=WithoutSlot(settings, runtime, endpoint, reader))

    models = ByMethod(GET=ListModels(fleet.catalogue))
    for_operators: list[Route] = []
    if identities.is_operator is not None:
        for_operators += _operator_routes(settings, parts, actions or OperatorActions(), reader)
        for_operators += _pages(parts.console)
    return [
        *(
            Route(path, handler)
            for endpoint in ENDPOINTS
            for handler in (handler_of(endpoint),)
            for path in endpoint.paths
        ),
        Route("/v1/requests/{id}/cancel", ByMethod(POST=CancelRequest(runtime.in_flight))),
        *_native_status(settings, fleet),
        Route("/v1/models", models),
        Route("/models", models),
        Route("/v1/models/{id:path}", ByMethod(GET=OneModel(fleet.catalogue))),
        *(Route(path, ByMethod(GET=Health())) for path in HEALTH_PATHS),
        *for_operators,
        Route("/ready", ByMethod(GET=Ready(fleet, runtime.scheduler))),
    ]


def _operator_routes(
    settings: Settings, parts: Composition, actions: OperatorActions, reader: RequestReader
) -> list[Route]:
    console, runtime = parts.console, parts.runtime

    def route(path: str, **handlers: ASGIApp) -> Route:
        guarded = {
            method: OperatorOnly(handler, console.operators, presented_keys)
            for method, handler in handlers.items()
        }
        return Route(path, ByMethod(**guarded))

    stall_timeout_s = settings.streaming.client_stall_timeout_s
    events = Events(console.live_status, console.operators, stall_timeout_s=stall_timeout_s)
    [chat] = [endpoint for endpoint in ENDPOINTS if PLAYGROUND_ENDPOINT in endpoint.paths]
    return [
        route("/metrics", GET=PrometheusText(parts.metrics)),
        route("/admin/status", GET=Status(runtime, actions.backends)),
        route("/admin/events", GET=events),
        route("/admin/requests", GET=Requests(runtime.in_flight, parts.history)),
        route("/admin/requests/{id}/cancel", POST=CancelAny(runtime.in_flight)),
        route("/admin/usage", GET=UsageTotals(parts.usage)),
        route("/admin/chat/completions", POST=Generate(settings, runtime, chat, reader)),
        *_backend_actions(route, runtime.fleet, actions.backends),
        route("/admin/reload", POST=Reload(actions.reload)),
    ]


def _pages(console: Console) -> list[Route]:
    """Return the paths of pages and sessions. They need no key, because the pages ask for it."""
    operators, pages = console.operators, console.pages

    session = ByMethod(GET=SessionState(operators), POST=SignIn(operators), DELETE=SignOut(operators))
    return [
        Route("/admin", ByMethod(GET=Page(pages.page("dashboard.html")))),
        Route("/admin/chat", ByMethod(GET=Page(pages.page("chat.html")))),
        Route("/admin/static/{name}", ByMethod(GET=StaticFile(pages))),
        Route("/admin/session", session),
        Route(START, ByMethod(GET=Redirect(b"/admin/chat"))),
    ]


def _backend_actions(
    route: Callable[..., Route], fleet: Fleet, actions: BackendActions | None
) -> list[Route]:
    if actions is None:
        return []
    methods = {
        "drain": actions.drain,
        "resume": actions.resume,
        "load": actions.load,
        "unload": actions.unload,
        "restart": actions.restart,
    }
    return [
        route(f"/admin/backends/{{name}}/{name}", POST=RunBackendAction(fleet, actions, method))
        for name, method in methods.items()
    ]


def _native_status(settings: Settings, fleet: Fleet) -> list[Route]:
    enabled: list[Route] = []
    if settings.server.expose_props:
        enabled.append(Route("/props", ByMethod(GET=Props(fleet.catalogue))))
    if settings.server.expose_slots:
        enabled.append(Route("/slots", ByMethod(GET=Slots(fleet.catalogue))))
    return enabled


def stack(settings: Settings, parts: Composition, identities: Identities) -> list[Layer]:
    """Return the middleware that every request passes, outermost first."""
    server = settings.server
    layers: list[Layer] = [RequestId]
    if (trace := parts.trace) is not None:
        layers.append(lambda app: Traced(app, trace, left_out=(*PUBLIC_PATHS, *OPERATOR_PREFIXES)))
    stall_s = settings.streaming.client_stall_timeout_s
    layers.append(
        lambda app: AccessLog(app, parts.request_ended, parts.log_limiter, client_stall_timeout_s=stall_s)
    )
    if server.cors_origins:
        layers.append(lambda app: Cors(app, server.cors_origins))
    layers.append(ErrorBoundary)
    layers.append(lambda app: LoopGuard(app, parts.runtime.mark))
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
                identities.identify,
                public_paths=PUBLIC_PATHS | {START},
                operator_prefixes=OPERATOR_PREFIXES,
            )
        )
    return layers


def build_app(
    settings: Settings, parts: Composition, identities: Identities, actions: OperatorActions | None = None
) -> ASGIApp:
    """Build the application for one configuration. A reload builds another one around the same parts."""
    served = routes(settings, parts, identities, actions)
    app: ASGIApp = Router(served, redirect_slashes=False, default=unknown_path)
    for layer in reversed(stack(settings, parts, identities)):
        app = layer(app)
    return _http_only(app)


def _http_only(app: ASGIApp) -> ASGIApp:
    async def http_only(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await app(scope, receive, send)

    return http_only
