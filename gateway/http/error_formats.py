"""The two formats of errors: OpenAI's, and Anthropic's on `/v1/messages`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from slotgate.gateway.http.errors import GatewayError

__all__ = ["ANTHROPIC", "OPENAI", "ErrorFormat", "anthropic_body", "error_format_for"]

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OVERLOADED = 529
"""Anthropic's status for an overloaded server, in place of 503."""


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """Functions that turn an error into a status and a body."""

    status: Callable[[GatewayError], int]
    body: Callable[[GatewayError], bytes]
    request_id_header: bytes | None = None
    """A second header with the request id, which this protocol's clients read."""


def anthropic_body(error: GatewayError) -> bytes:
    """The error in Anthropic's format.

    The code and the backend's own fields are kept beside type and message.
    """
    said = error.payload()
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    extra = {name: value for name, value in said.items() if name != "param" or value is not None}
    return orjson.dumps({"type": "error", "error": {**extra, "type": kind, "message": error.message}})


def _anthropic_status(error: GatewayError) -> int:
    return _OVERLOADED if error.status == 503 else error.status


OPENAI = ErrorFormat(status=lambda error: error.status, body=lambda error: error.body())
ANTHROPIC = ErrorFormat(status=_anthropic_status, body=anthropic_body, request_id_header=b"request-id")


def error_format_for(path: str) -> ErrorFormat:
    """Return the format of errors that clients of this path expect."""
    return ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else OPENAI
