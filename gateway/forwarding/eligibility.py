"""Checks of a model's backends before a request queues, and the headers that a backend receives."""

from __future__ import annotations

import asyncio
import re

from starlette.types import Scope

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.fleet import reasons
from slotgate.gateway.http.context import RequestContext, headers_of
from slotgate.gateway.http.errors import CapacityError
from slotgate.gateway.http.headers import Headers

__all__ = ["check_served", "upstream_headers", "widest"]


def check_served(backends: list[Backend]) -> None:
    """Raise `CapacityError` if no backend of the model is worth waiting for."""
    now = asyncio.get_running_loop().time()
    if all(backend.is_unavailable(now) for backend in backends):
        raise CapacityError(
            503, "no_backend", f"no backend serves this model now ({reasons(backends)})", retry_after_s=5.0
        )


_is_trace = re.compile(rb"[0-9a-f-]{1,128}").fullmatch
"""Matches a value of hexadecimal fields (W3C Trace Context, 3.2). No other value is sent to a backend."""


def widest(backends: list[Backend]) -> int:
    """Return the most slots that one request can get; 0 while no backend has stated how many it has."""
    return max((backend.pool.total for backend in backends), default=0)


def upstream_headers(
    scope: Scope, context: RequestContext, *, stream: bool = False, content_type: bytes = b"application/json"
) -> Headers:
    """Return the headers for the backend. No other headers of the client are sent to it."""
    headers: Headers = [
        (b"content-type", content_type),
        (b"accept", b"text/event-stream" if stream else b"application/json"),
        (b"x-request-id", context.id.encode()),
    ]
    trace = context.traceparent or headers_of(scope).get(b"traceparent", b"")
    if _is_trace(trace):
        headers.append((b"traceparent", trace))
    if context.via:
        headers.append((b"x-slotgate-via", context.via))
    return headers
