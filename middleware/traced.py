"""Tells of each request when it begins and when it has ended. In the stack only where traces are wanted."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import RequestContext, context_of

__all__ = ["Traced"]


class Traced:
    """Outside of what notes how the request ended; neither it nor `begin` may raise."""

    def __init__(
        self,
        app: ASGIApp,
        begin: Callable[[Scope, RequestContext], Callable[[], None]],
        *,
        left_out: tuple[str, ...],
    ) -> None:
        """Requests whose path begins with one of `left_out` are not told of."""
        self._app = app
        self._begin = begin
        self._left_out = left_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(self._left_out):
            await self._app(scope, receive, send)
            return
        end = self._begin(scope, context_of(scope))
        try:
            await self._app(scope, receive, send)
        finally:
            end()
