"""Call the tracer when a request begins and when it has ended. In the stack only if tracing is on."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import RequestContext, context_of

__all__ = ["Traced"]


class Traced:
    """Begins and ends the trace of a request. It is outside the access log, which sets the outcome.

    `begin` and the function that it returns must not raise.
    """

    def __init__(
        self,
        app: ASGIApp,
        begin: Callable[[Scope, RequestContext], Callable[[], None]],
        *,
        left_out: tuple[str, ...],
    ) -> None:
        """Requests whose path begins with one of `left_out` are not traced."""
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
