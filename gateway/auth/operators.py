"""Authenticate operators: by an operator key, or by the cookie of a session that the key opened.

    bearer key ------------------------------------> Access
    key, once --> session --> cookie, own Origin --> Access

A browser attaches a cookie to a request whichever page caused it. `SameSite=Strict` keeps the cookie from
pages of other sites. A request that changes something must also come from a page of this gateway's own
origin.

One `Operators` lives as long as the process. A reload changes which keys are valid and ends the sessions of
keys that are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Scope

from slotgate.gateway.auth.sessions import LIFETIME_S, Sessions
from slotgate.gateway.auth.sign_in_limiter import SignInLimiter
from slotgate.gateway.http.context import headers_of
from slotgate.gateway.http.errors import ClientError

__all__ = ["Access", "Operators"]

_COOKIE: Final = "slotgate_session"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Access:
    """The key or session that an operator was admitted with. `Operators.good` says if it is still valid."""

    key_digest: bytes = field(repr=False)
    session_id: str = field(default="", repr=False)
    """Empty if the operator presented the key itself."""


class Operators:
    """`holds` returns True for the digest of an operator key. None if no operator key is configured."""

    def __init__(self, holds: Callable[[bytes], bool] | None, clock: Callable[[], float]) -> None:
        self._holds = holds
        self._sessions = Sessions(clock)
        self._wrong_keys = SignInLimiter(clock)

    def __repr__(self) -> str:
        return f"<Operators {self._sessions!r}>"

    def change(self, holds: Callable[[bytes], bool] | None) -> None:
        """Replace the valid keys, and end the sessions of keys that are not valid any more."""
        self._holds = holds
        self._sessions.keep(holds or _no_key)

    def good(self, access: Access) -> bool:
        """Return True if the key is still valid, or the session still open."""
        if access.session_id:
            return self._sessions.find(access.session_id) is not None
        return self._holds is not None and self._holds(access.key_digest)

    def admit(self, scope: Scope, presented: list[bytes]) -> Access:
        """Authenticate a request.

        Raises `ClientError`: 401 without a valid key or session, 403 if a session's cookie comes with a
        changing request from another page.
        """
        if presented:
            access = self._by_key(presented[0]) if len(presented) == 1 else None
        else:
            access = self.session_of(scope)
            if access is not None:
                check_origin(scope, needed=scope["method"] not in _SAFE)
        if access is None:
            message = "this needs the operator key"
            raise ClientError("invalid_api_key", message, status=401, kind="authentication_error")
        return access

    def session_of(self, scope: Scope) -> Access | None:
        """Return the open session of the request's cookie, or None.

        Another server on this host may have set cookies of the same name, so all of them are tried.
        """
        for session_id in _cookies(scope):
            session = self._sessions.find(session_id)
            if session is not None:
                return Access(session.key_digest, session_id)
        return None

    def sign_in(self, scope: Scope, key: bytes) -> bytes:
        """Open a session, close the browser's earlier session, and return the new `set-cookie`.

        Raises `ClientError` 401 for a wrong key, and `CapacityError` 429 after too many of them.
        """
        client = scope.get("client")
        address = client[0] if client else ""
        self._wrong_keys.check(address)
        access = self._by_key(key)
        if access is None:
            self._wrong_keys.count(address)
            message = "this is not the operator key"
            raise ClientError("invalid_api_key", message, status=401, kind="authentication_error")
        self._close(scope)
        return _set_cookie(scope, self._sessions.open(access.key_digest), int(LIFETIME_S))

    def sign_out(self, scope: Scope) -> bytes:
        """Close the request's session, if it has one, and return the `set-cookie` that deletes the cookie."""
        self._close(scope)
        return _set_cookie(scope, "", 0)

    def _close(self, scope: Scope) -> None:
        for session_id in _cookies(scope):
            self._sessions.close(session_id)

    def _by_key(self, key: bytes) -> Access | None:
        digest = hashlib.sha256(key).digest()
        return Access(digest) if self._holds is not None and self._holds(digest) else None


def check_origin(scope: Scope, *, needed: bool = True) -> None:
    """Raise `ClientError` 403 unless the request comes from a page of this gateway's origin.

    The scheme is not compared, because a proxy that ends TLS does not always report it.
    """
    headers = headers_of(scope)
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    if origin is None and not needed:
        return
    said = (origin or b"").decode("latin-1")
    scheme = said.partition("://")[0].lower()
    here = _authority(f"{scheme}://{host.decode('latin-1')}")
    if origin is None or here is None or _authority(said) != here:
        message = "a signed-in browser may change something only from this gateway's own pages"
        raise ClientError("origin_not_allowed", message, status=403, kind="permission_error")


def _authority(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


def _name(scope: Scope) -> str:
    """The cookie's name has the port: browsers keep cookies by host, not by port."""
    server = scope.get("server")
    return f"{_COOKIE}_{server[1]}" if server and server[1] else _COOKIE


def _cookies(scope: Scope) -> Iterator[str]:
    name = _name(scope)
    for header, value in scope["headers"]:
        if header == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, content = pair.strip().partition("=")
                if key == name and content:
                    yield str(content)


def _set_cookie(scope: Scope, session_id: str, lifetime_s: int) -> bytes:
    forwarded = headers_of(scope).get(b"x-forwarded-proto", b"").strip().lower()
    secure = "; Secure" if "https" in (scope.get("scheme"), forwarded.decode("latin-1")) else ""
    attributes = f"Path=/admin; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"
    return f"{_name(scope)}={session_id}; {attributes}".encode("latin-1")


def _no_key(_: bytes) -> bool:
    return False
