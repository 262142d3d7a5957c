"""Dispatch the methods of one path, and answer 404 and 405."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_whole

__all__ = ["ByMethod", "unknown_path"]


class ByMethod:
    """Call the endpoint of the request's method.

    HEAD calls the endpoint of GET; the server leaves the body out. OPTIONS lists the allowed methods. Every
    other method gets 405.
    """

    def __init__(self, **endpoints: ASGIApp) -> None:
        self._endpoints = dict(endpoints)
        if "GET" in endpoints:
            self._endpoints["HEAD"] = endpoints["GET"]
        self.allow = ", ".join([*self._endpoints, "OPTIONS"]).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "OPTIONS":
            await send_whole(send, 200, [(b"allow", self.allow)], b"")
            return
        endpoint = self._endpoints.get(method)
        if endpoint is None:
            message = f"{method} is not allowed on {scope['path']}"
            raise ClientError("method_not_allowed", message, status=405, headers=[(b"allow", self.allow)])
        await endpoint(scope, receive, send)


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404. The gateway forwards no path that it does not know."""
    raise ClientError("unknown_path", f"there is nothing at {scope['path']}", status=404)
