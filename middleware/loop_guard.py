"""Refuse a request that has passed this gateway before.

A gateway whose backend is itself, or two whose backends are each other, would turn one request into many
until all slots are taken. So each gateway adds its own mark to the requests that it sends to backends, in the
header `x-slotgate-via`, after the marks that came with the request. A request that carries the mark of the
gateway that it reaches has gone round. It is refused before its body is read.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import context_of
from slotgate.gateway.http.errors import ClientError

__all__ = ["VIA", "LoopGuard"]

VIA = b"x-slotgate-via"
MAX_HOPS = 8
"""A request that has passed so many gateways is refused, too."""
_marks = re.compile(rb"[0-9a-f]{16}(?:, [0-9a-f]{16})*").fullmatch


class LoopGuard:
    """`mark` is this gateway's own: 16 hexadecimal digits."""

    def __init__(self, app: ASGIApp, mark: bytes) -> None:
        self._app = app
        self._mark = mark

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == VIA), b"")
        passed = given.split(b", ") if _marks(given) else []
        if self._mark in passed or len(passed) >= MAX_HOPS:
            message = "this request has passed this gateway before: a backend's url leads back to it"
            raise ClientError("loop_detected", message, status=508)
        context_of(scope).via = b", ".join([*passed, self._mark])
        await self._app(scope, receive, send)
