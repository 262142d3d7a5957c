"""`/admin/session`: sign in with the operator key, ask for the state of the session, and sign out."""

from __future__ import annotations

import orjson
from starlette.types import Receive, Scope, Send

from slotgate.gateway.auth.operators import Operators, check_origin
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_json
from slotgate.gateway.http.request_body import read_body

__all__ = ["SessionState", "SignIn", "SignOut"]

_MAX_BODY_BYTES = 4096
_BODY_TIMEOUT_S = 10.0
_NO_STORE = (b"cache-control", b"no-store")


class SignIn:
    """`POST {"key": …}` answers with a session cookie.

    A browser must send it from a page of this gateway, so that another site cannot sign an operator in.
    """

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope, needed=False)
        body = await read_body(scope, receive, max_bytes=_MAX_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S)
        cookie = self._operators.sign_in(scope, _key(body))
        await send_json(send, 200, {"signed_in": True}, [(b"set-cookie", cookie), _NO_STORE])


class SessionState:
    """`GET` tells if there is a session. Having none is no error, so that a page can ask when it opens."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        signed_in = self._operators.session_of(scope) is not None
        await send_json(send, 200, {"signed_in": signed_in}, [_NO_STORE])


class SignOut:
    """`DELETE` ends the session and removes its cookie."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope)
        cookie = self._operators.sign_out(scope)
        await send_json(send, 200, {"signed_in": False}, [(b"set-cookie", cookie), _NO_STORE])


def _key(body: bytes) -> bytes:
    try:
        key = orjson.loads(body)["key"]
    except (orjson.JSONDecodeError, TypeError, LookupError):
        key = None
    if not isinstance(key, str):
        raise ClientError("invalid_request", 'the body must be {"key": "…"}', param="key")
    return key.strip().encode()
