"""One path, several methods: the endpoint for each, and honest answers for the rest."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_whole

__all__ = ["ByMethod", "unknown_path"]


class ByMethod:
    """HEAD is answered as GET (the server leaves the body out); OPTIONS with what is allowed; others 405."""

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
    """Nothing is proxied blindly: every path that is not in the table ends here."""
    raise ClientError("unknown_path", f"there is nothing at {scope['path']}", status=404)
