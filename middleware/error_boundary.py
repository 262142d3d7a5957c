"""Turns errors into answers, while there is still an answer to be given.

A `GatewayError` becomes its JSON form. Anything else is a fault of the gateway: one log line with the
traceback, and 500 without details. Once a response has begun only its endpoint can end it properly, so an
error that still gets here is logged and the connection is left to the server.
"""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import context_of
from gateway.errors import ClientGone, GatewayError
from gateway.replies import send_error

__all__ = ["ErrorBoundary"]

log = structlog.stdlib.get_logger("slotgate.errors")


class ErrorBoundary:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            raise
        except GatewayError as error:
            context.code = error.code
            if context.status is None:
                await send_error(send, error)
        except Exception as error:
            context.code = "internal_error"
            log.exception("internal error", id=context.id, path=scope["path"])
            if context.status is None:
                message = "the gateway failed to handle the request"
                await send_error(send, GatewayError(500, "server_error", "internal_error", message))
            else:
                raise ClientGone from error
