"""Keeps web pages away from `slotgate record` and `slotgate replay`, as the gateway does without keys.

A page that a browser shows could otherwise send requests with the recorder's key, and write into its folder.
"""

from __future__ import annotations

import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.error_formats import error_format_for
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_error
from slotgate.middleware import WebGuard

__all__ = ["guarded"]


def guarded(app: ASGIApp, host: str) -> ASGIApp:
    """Return the app behind the web guard. `host` is the address that it listens on.

    Besides loopback names, this address and the name of this machine may be asked.
    """
    guard = WebGuard(
        app,
        allowed_hosts=(host, socket.gethostname()),
        allowed_origins=(),
        public_paths=frozenset(),
        allows_links=False,
    )

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await guard(scope, receive, send)
        except ClientError as error:
            await send_error(send, error, error_format_for(scope["path"]))

    return checked
