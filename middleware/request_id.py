"""Outermost layer: give each request an id and a context, and each response its id header.

This is the only layer that wraps `send`. It stores the status for the other layers, so that none of them has
to be in the path of every frame.
"""

from __future__ import annotations

import asyncio
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotgate.gateway.http.context import RequestContext, attach
from slotgate.gateway.http.error_formats import error_format_for

__all__ = ["RequestId"]

_kept = re.compile(rb"[A-Za-z0-9._:-]{1,128}").fullmatch


class RequestId:
    """Keeps the client's `x-request-id` if it is 1 to 128 of `[A-Za-z0-9._:-]`, else makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _kept(given) else secrets.token_hex(16)
        context = RequestContext(request_id, asyncio.get_running_loop().time())
        attach(scope, context)
        names = (b"x-request-id", error_format_for(scope["path"]).request_id_header)
        ids = [(name, request_id.encode()) for name in names if name is not None]

        async def send_with_id(message: Message) -> None:
            if context.status is None and message["type"] == "http.response.start":
                context.status = message["status"]
                timing = context.server_timing(asyncio.get_running_loop().time())
                message["headers"] = [*message["headers"], *ids, *context.headers, (b"server-timing", timing)]
            await send(message)

        await self._app(scope, receive, send_with_id)
