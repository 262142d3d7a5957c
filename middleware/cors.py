"""CORS for configured origins: Starlette's raw ASGI middleware, but a preflight gets an empty 204."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

__all__ = ["Cors"]

_EXPOSED = ("x-request-id", "server-timing", "retry-after", "x-slotgate-reason")


class Cors(CORSMiddleware):
    """Adds CORS headers.

    It is outside authentication: a preflight has no key, and pages must be able to read refusals.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=_EXPOSED,
            max_age=600,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code != 200:
            return response
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return Response(status_code=204, headers=kept)
