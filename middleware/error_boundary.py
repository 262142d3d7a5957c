"""Turn exceptions into error responses, if no response has begun.

A `GatewayError` becomes its JSON form. Any other exception is a bug of the gateway: it is logged with its
traceback, and the client gets 500 without details. After a response has begun, only its endpoint can end it
properly. An error that arrives here then is logged, and the server closes the connection.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import RequestContext, context_of
from slotgate.gateway.http.error_formats import error_format_for
from slotgate.gateway.http.errors import ClientGone, GatewayError, internal_error
from slotgate.gateway.http.replies import send_error

__all__ = ["ErrorBoundary"]


class ErrorBoundary:
    """Lets `ClientGone` pass, and raises it for errors after the response has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            raise
        except GatewayError as error:
            await _answer(error, context, scope, send)
        except Exception as error:
            await _answer(internal_error(error, context.id), context, scope, send)


async def _answer(failure: GatewayError, context: RequestContext, scope: Scope, send: Send) -> None:
    """Send the error as a response. Raises `ClientGone` if a response has begun.

    The caller keeps no reference to the error: its traceback holds the caller's frame, and with it the
    request's body, so the two would keep each other alive until the next garbage collection.
    """
    context.code, context.message = failure.code, failure.message
    if context.status is not None:
        context.outcome = "error"
        raise ClientGone
    await send_error(send, failure, error_format_for(scope["path"]))
