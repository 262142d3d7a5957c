"""What can go wrong with a request, and what the client is told.

    GatewayError                 status, type, code, message; who caused it; whether a retry is safe
      ClientError                the request is at fault (4xx)
      CapacityError              no slot for it now (429, 503), with an estimate of when
      UpstreamError              the backend failed us (502, 504)
      UpstreamAnswer             the backend's own error answer, passed on with its fields

    ClientGone                   an outcome, not an error: nobody is there to be told

An error is raised or handed over as one of these and rendered once: as a JSON answer with its status while
the response is not committed, as one framed error afterwards. Foreign exceptions are translated
where they cross into the gateway, keeping their cause.
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
    "idle_timeout": "the backend fell silent",
    "total_timeout": "the request took longer than it may",
}
log = structlog.stdlib.get_logger(__name__)
_is_word = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class ClientGone(Exception):
    """The client closed its connection."""


class GatewayError(Exception):
    """An answer that is no success. `code` names the reason; it is also the header `x-slotgate-reason`."""

    retry_safe = False
    """Whether the work is known not to have begun upstream, so that another backend may be tried."""

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
        """The error object in OpenAI's shape."""
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
    """429: capacity exists but is contended. 503: nothing can serve now, or the wait ran out."""

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
        told = [(b"retry-after", b"%d" % seconds), *(headers or [])]
        super().__init__(status, self.KIND[status], code, message, headers=told)


class UpstreamError(GatewayError):
    """502 and 504: the gateway reports that the backend failed."""

    def __init__(self, code: str, message: str, *, status: int = 502, retry_safe: bool = False) -> None:
        super().__init__(status, "timeout_error" if status == 504 else "upstream_error", code, message)
        self.retry_safe = retry_safe


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
    """What the client is told of a fault of ours; the operator is told in one line of the log."""
    log.warning("internal error", id=request_id, error=repr(error), exc_info=error)
    failure = GatewayError(500, "server_error", "internal_error", "the gateway failed to handle the request")
    failure.__cause__ = error
    return failure
