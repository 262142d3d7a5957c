"""`/admin/session`: the key in a body for a cookie, whether there is a session, and its end."""

from __future__ import annotations

import orjson
from starlette.types import Receive, Scope, Send

from slotgate.gateway.auth.operators import Operators, check_origin
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_json
from slotgate.gateway.http.request_body import read_body

__all__ = ["SessionState", "SignIn", "SignOut"]

_MOST_BYTES = 4096
_WITHIN_S = 10.0
_NOT_KEPT = (b"cache-control", b"no-store")


class SignIn:
    """`POST {"key": …}`. From a browser the page must be one of ours: nobody is signed in unasked."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope, needed=False)
        body = await read_body(scope, receive, max_bytes=_MOST_BYTES, timeout_s=_WITHIN_S)
        cookie = self._operators.sign_in(scope, _key(body))
        await send_json(send, 200, {"signed_in": True}, [(b"set-cookie", cookie), _NOT_KEPT])


class SessionState:
    """`GET`: no error where there is none, so that a page can ask before it shows itself."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        signed_in = self._operators.session_of(scope) is not None
        await send_json(send, 200, {"signed_in": signed_in}, [_NOT_KEPT])


class SignOut:
    """`DELETE`."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope)
        cookie = self._operators.sign_out(scope)
        await send_json(send, 200, {"signed_in": False}, [(b"set-cookie", cookie), _NOT_KEPT])


def _key(body: bytes) -> bytes:
    try:
        key = orjson.loads(body)["key"]
    except (orjson.JSONDecodeError, TypeError, LookupError):
        key = None
    if not isinstance(key, str):
        raise ClientError("invalid_request", 'the body must be {"key": "…"}', param="key")
    return key.strip().encode()
