"""`GET /admin/events`: the content of `/admin/status`, live, as server-sent events twice a second.

A client that does not read holds only the frame that is being sent to it. After a time limit its connection
is closed. The stream ends at once when the gateway begins to stop. It ends at the next frame when the key or
session that opened it is no longer valid.
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
    """The endpoint `/admin/events`."""

    def __init__(self, live_status: LiveStatus, operators: Operators, *, stall_timeout_s: float) -> None:
        """A connection is closed when a frame could not be sent within `stall_timeout_s`."""
        self._live_status = live_status
        self._operators = operators
        self._stall_timeout_s = stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await _start(send)
            await _end(send)
            return
        sender = _FrameSender(send, self._stall_timeout_s)
        with until_client_gone(receive) as watch, self._live_status.subscription(watch.stop) as subscriber:
            await _start(send)
            await self._send_frames(scope, subscriber, sender)
        if watch.gone:
            raise ClientGone
        if sender.stuck:  # the client does not read, so the rest of the frame will never be sent
            context_of(scope).outcome = "client_stalled"
            await abort_connection(scope, receive)
            raise ClientGone
        await _end(send)

    async def _send_frames(self, scope: Scope, subscriber: Subscriber, sender: _FrameSender) -> None:
        access = access_of(scope)
        while self._operators.good(access) and not sender.stuck:
            await sender.send(await subscriber.frame())


class _FrameSender:
    """Sends frames to one client, one at a time."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self.stuck = False
        """True while a frame is being sent, and after one timed out. Nothing can be sent after that."""
        self._send = send
        self._timeout_s = timeout_s

    async def send(self, frame: bytes) -> None:
        self.stuck = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._send({"type": "http.response.body", "body": frame, "more_body": True})
                self.stuck = False


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
