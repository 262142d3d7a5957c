"""The application: the one place that knows everybody.

    stack (outermost first) -> router -> endpoint

A request is handled by the raw ASGI callables below and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import TenantIdentity
from gateway.endpoints.by_method import ByMethod, unknown_path
from gateway.endpoints.chat import ChatCompletions
from gateway.endpoints.health import Health, Ready
from gateway.endpoints.models import ListModels, OneModel
from gateway.fleet import Fleet
from gateway.settings import Settings
from middleware import AccessLog, Authentication, Cors, ErrorBoundary, RequestId, WebGuard

__all__ = ["PUBLIC_PATHS", "build_app", "routes", "stack"]

PUBLIC_PATHS = frozenset({"/health", "/ready"})
"""What needs no key."""

Layer = Callable[[ASGIApp], ASGIApp]
Identify = Callable[[bytes], TenantIdentity | None]


def routes(settings: Settings, fleet: Fleet) -> list[Route]:
    chat = ByMethod(POST=ChatCompletions(settings, fleet))
    models = ByMethod(GET=ListModels(fleet.catalogue))
    return [
        Route("/v1/chat/completions", chat),
        Route("/chat/completions", chat),
        Route("/v1/models", models),
        Route("/models", models),
        Route("/v1/models/{id:path}", ByMethod(GET=OneModel(fleet.catalogue))),
        Route("/health", ByMethod(GET=Health())),
        Route("/ready", ByMethod(GET=Ready(fleet))),
    ]


def stack(settings: Settings, identify: Identify) -> list[Layer]:
    """Every layer a request passes, outermost first."""
    server = settings.server
    layers: list[Layer] = [RequestId, AccessLog]
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
        layers.append(lambda app: Authentication(app, identify, PUBLIC_PATHS))
    return layers


def build_app(settings: Settings, fleet: Fleet, identify: Identify) -> ASGIApp:
    app: ASGIApp = Router(routes(settings, fleet), redirect_slashes=False, default=unknown_path)
    for layer in reversed(stack(settings, identify)):
        app = layer(app)
    return _http_only(app)


def _http_only(app: ASGIApp) -> ASGIApp:
    async def http_only(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await app(scope, receive, send)

    return http_only
