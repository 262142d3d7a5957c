"""The errors of a request, and what the client is told about them.

    GatewayError                 status, type, code, message; whether a retry on another backend is safe
      ClientError                the request is at fault (4xx)
      CapacityError              there is no slot for it now (429, 503); has an estimate of when to retry
      UpstreamError              the backend failed (502, 504)
      UpstreamAnswer             the backend's own error answer, forwarded with its fields

    ClientGone                   the client closed its connection: an outcome, not an error

Each error is sent once: as a JSON answer if the response has not begun, as an event inside the stream if it
has. Exceptions of libraries are translated where they enter the gateway and kept as the cause.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import orjson
import structlog

from slotgate.gateway.http.headers import Headers

__all__ = [
    "CapacityError",
    "ClientError",
    "ClientGone",
    "GatewayError",
    "UpstreamAnswer",
    "UpstreamError",
    "internal_error",
    "upstream_timeout",
]

_TIMEOUTS = {
    "first_byte_timeout": "the backend did not begin to answer in time",
    "idle_timeout": "the backend stopped sending",
    "total_timeout": "the request took longer than its time limit",
}
log = structlog.stdlib.get_logger(__name__)
_is_word = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class ClientGone(Exception):
    """The client closed its connection."""


class GatewayError(Exception):
    """An error answer. `code` gives the reason; the header `x-slotgate-reason` has it too."""

    retry_safe = False
    """True if the backend has certainly not begun the work, so that another one may be asked."""
    context_exceeded = False
    """True if the backend ended the request because the context that its slots share was full."""
    lost = False
    """True if the backend closed the connection before its answer was complete. It may have died."""

    def __init__(
        self,
        status: int,
        kind: str,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.message = message
        self.param = param
        self._headers = headers or []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status} {self.code}: {self.message}>"

    def headers(self) -> Headers:
        return [(b"x-slotgate-reason", self.code.encode()), *self._headers]

    def payload(self) -> dict[str, Any]:
        """The error object in OpenAI's format."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        return orjson.dumps({"error": self.payload()})


class ClientError(GatewayError):
    """4xx: the request is at fault."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(status, kind, code, message, param=param, headers=headers)


class CapacityError(GatewayError):
    """429 if the tenant or the queue is at a limit. 503 if no backend can serve now, or the wait was too
    long.
    """

    KIND: ClassVar = {429: "rate_limit_error", 503: "overloaded_error"}

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        headers: Headers | None = None,
    ) -> None:
        seconds = max(1, math.ceil(retry_after_s or 1.0))
        all_headers = [(b"retry-after", b"%d" % seconds), *(headers or [])]
        super().__init__(status, self.KIND[status], code, message, headers=all_headers)


class UpstreamError(GatewayError):
    """502 and 504: the gateway reports that the backend failed."""

    def __init__(
        self, code: str, message: str, *, status: int = 502, retry_safe: bool = False, lost: bool = False
    ) -> None:
        super().__init__(status, "timeout_error" if status == 504 else "upstream_error", code, message)
        self.retry_safe = retry_safe
        self.lost = lost


class UpstreamAnswer(GatewayError):
    """An error that the backend itself reported. All fields of its error object are kept."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        kind = error.get("type")
        code = error.get("code")
        message = error.get("message")
        super().__init__(
            status,
            kind if isinstance(kind, str) else "upstream_error",
            code if isinstance(code, str) and _is_word(code) else "upstream_error",
            message if isinstance(message, str) else "the backend reported an error",
        )
        self._error = error

    def payload(self) -> dict[str, Any]:
        code = self._error.get("code")
        ours = {"message": self.message, "type": self.kind, "code": self.code if code is None else code}
        return {**self._error, **ours}


def upstream_timeout(limit: str) -> UpstreamError:
    return UpstreamError(limit, _TIMEOUTS[limit], status=504)


def internal_error(error: Exception, request_id: str) -> GatewayError:
    """Log an unexpected exception, and return the 500 for the client, which has no details."""
    log.warning("internal error", id=request_id, error=repr(error), exc_info=error)
    failure = GatewayError(500, "server_error", "internal_error", "the gateway failed to handle the request")
    failure.__cause__ = error
    return failure
