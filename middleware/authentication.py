"""Authenticate tenants by a key in `authorization: Bearer KEY` or `x-api-key: KEY`.

Public paths need no key. The operator's endpoints check the operator key themselves. Every other request
without a known key gets 401 before its body is read.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import Caller, context_of
from slotgate.gateway.http.errors import ClientError

__all__ = ["Authentication", "presented_keys"]


class Authentication:
    """`identify` returns the caller of a presented key, or None. Its time must not depend on the key."""

    def __init__(
        self,
        app: ASGIApp,
        identify: Callable[[bytes], Caller | None],
        *,
        public_paths: frozenset[str],
        operator_prefixes: tuple[str, ...],
    ) -> None:
        self._app = app
        self._identify = identify
        self._public = public_paths
        self._operators = operator_prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in self._public and not path.startswith(self._operators):
            caller, context = self._caller(scope), context_of(scope)
            context.tenant, context.key, context.key_digest = caller.tenant, caller.key, caller.digest
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        keys = presented_keys(scope)
        found = self._identify(keys[0]) if len(keys) == 1 else None
        if found is None or found.expired:
            message = "the API key is not known here"
            if not keys:
                message = "no API key was given"
            elif found is not None:
                message = f"the API key {found.key!r} has expired"
            raise ClientError(
                "invalid_api_key",
                message,
                status=401,
                kind="authentication_error",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return found


def presented_keys(scope: Scope) -> list[bytes]:
    """Return the different keys of the request. A request with more than one is refused."""
    found: list[bytes] = []
    for name, value in scope["headers"]:
        key = b""
        if name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            key = credentials.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            key = value.strip()
        if key and key not in found:
            found.append(key)
    return found
