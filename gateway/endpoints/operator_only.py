"""The guard of the operator's endpoints: the key, or a session's cookie; 404 where there is no operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import TenantIdentity, context_of
from gateway.endpoints.by_method import unknown_path
from gateway.operators import Access, Operators

__all__ = ["OPERATOR", "OperatorExists", "OperatorOnly", "access_of"]

OPERATOR = TenantIdentity("operator")
"""Who asks in the playground: any model, no limits but the queue's."""
_KEY = "slotgate.operator"


class OperatorExists:
    """For what needs no key and makes no sense without an operator: the pages, and the way in."""

    def __init__(self, app: ASGIApp, operators: Operators) -> None:
        self._app = app
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._app if self._operators.exist else unknown_path
        await endpoint(scope, receive, send)


class OperatorOnly:
    def __init__(
        self, app: ASGIApp, operators: Operators, presented_keys: Callable[[Scope], list[bytes]]
    ) -> None:
        self._app = app
        self._operators = operators
        self._presented_keys = presented_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._operators.exist:
            await unknown_path(scope, receive, send)
            return
        scope["state"][_KEY] = self._operators.admit(scope, self._presented_keys(scope))
        context_of(scope).tenant = OPERATOR
        await self._app(scope, receive, send)


def access_of(scope: Scope) -> Access:
    """By what the operator was let in."""
    return cast("Access", scope["state"][_KEY])
