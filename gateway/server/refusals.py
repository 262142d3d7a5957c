"""The errors with which a connection refuses what it reads, before an application sees it."""

from __future__ import annotations

import httptools
import structlog

from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError

__all__ = ["header_timeout", "parser_stopped", "too_many_connections", "too_much_ahead"]

log = structlog.stdlib.get_logger(__name__)


def parser_stopped(error: httptools.HttpParserError) -> GatewayError:
    """Return the error for which the parser stopped.

    A callback refused the request, or failed, or the bytes are not HTTP.
    """
    cause = error.__context__
    if isinstance(cause, GatewayError):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("internal error", exc_info=cause)
        return GatewayError(500, "server_error", "internal_error", "the gateway failed to read the request")
    return ClientError("invalid_request", f"the request is not valid HTTP/1.1: {error}")


def too_many_connections() -> CapacityError:
    message = "as many connections are in use as the gateway, or one address, may have"
    return CapacityError(503, "too_many_connections", message)


def too_much_ahead() -> ClientError:
    return ClientError(
        "invalid_request", "too many bytes or requests were sent before the previous answer was complete"
    )


def header_timeout(seconds: float) -> ClientError:
    message = f"the request's headers were not complete within {seconds:g} s"
    return ClientError("header_timeout", message, status=408, kind="timeout_error")
