"""The guard of the operators' endpoints. It accepts an operator key or an operator's session cookie."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.auth.operators import Access, Operators
from slotgate.gateway.http.context import TenantIdentity, context_of

__all__ = ["OPERATOR", "OperatorOnly", "access_of"]

OPERATOR = TenantIdentity("operator")
"""The tenant of requests from the playground: it may use every model and has no limits of its own."""
_KEY = "slotgate.operator"


class OperatorOnly:
    """Calls `app` for operators only. Raises an error for all other clients."""

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
    """Return the key or session that this operator was admitted with."""
    return cast("Access", scope["state"][_KEY])
