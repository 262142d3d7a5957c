"""The guard of the operator's endpoints: the key, or the cookie of a session that it opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.auth.operators import Access, Operators
from slotgate.gateway.http.context import TenantIdentity, context_of

__all__ = ["OPERATOR", "OperatorOnly", "access_of"]

OPERATOR = TenantIdentity("operator")
"""Who asks in the playground: any model, no limits but the queue's."""
_KEY = "slotgate.operator"


class OperatorOnly:
    def __init__(
        self, app: ASGIApp, operators: Operators, presented_keys: Callable[[Scope], list[bytes]]
    ) -> None:
        self._app = app
        self._operators = operators
        self._presented_keys = presented_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][_KEY] = self._operators.admit(scope, self._presented_keys(scope))
        context_of(scope).tenant = OPERATOR
        await self._app(scope, receive, send)


def access_of(scope: Scope) -> Access:
    """By what the operator was let in."""
    return cast("Access", scope["state"][_KEY])
