"""`GET /admin/events`: what `/admin/status` says, live, as server-sent events, at most twice a second.

A viewer that does not read holds the one frame that is being sent to it, and its connection is cut in the
end. The stream ends at once when the gateway begins to stop, and with the key or session that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Receive, Scope, Send

from slotgate.gateway.admin.handlers.operator_only import access_of
from slotgate.gateway.admin.live_status import LiveStatus, Subscriber
from slotgate.gateway.auth.operators import Operators
from slotgate.gateway.http.context import context_of
from slotgate.gateway.http.disconnect import abort_connection, until_client_gone
from slotgate.gateway.http.errors import ClientGone

__all__ = ["Events"]

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Events:
    def __init__(self, live_status: LiveStatus, operators: Operators, *, stall_timeout_s: float) -> None:
        """A connection is cut when one frame could not be sent for `stall_timeout_s`."""
        self._live_status = live_status
        self._operators = operators
        self._stall_timeout_s = stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await _start(send)
            await _end(send)
            return
        sending = _Sending(send, self._stall_timeout_s)
        with until_client_gone(receive) as watch, self._live_status.viewing(watch.stop) as viewer:
            await _start(send)
            await self._tell(scope, viewer, sending)
        if watch.gone:
            raise ClientGone
        if sending.under_way:  # nobody waits for who does not read
            context_of(scope).outcome = "client_stalled"
            await abort_connection(scope, receive)
            raise ClientGone
        await _end(send)

    async def _tell(self, scope: Scope, viewer: Subscriber, sending: _Sending) -> None:
        access = access_of(scope)
        while self._operators.good(access) and not sending.under_way:
            await sending.send(await viewer.frame())


class _Sending:
    """One frame after the other to one viewer."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self.under_way = False
        """Also when it was given up: nothing can be sent behind it."""
        self._send = send
        self._timeout_s = timeout_s

    async def send(self, frame: bytes) -> None:
        self.under_way = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._send({"type": "http.response.body", "body": frame, "more_body": True})
                self.under_way = False


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
