"""`POST /v1/requests/{id}/cancel`: a tenant ends a request of its own, wherever that is on its way."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from slotgate.gateway.forwarding.cancel import cancel
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.http.context import context_of

__all__ = ["CancelRequest"]


class CancelRequest:
    def __init__(self, live: InFlight) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await cancel(self._live, scope["path_params"]["id"], context_of(scope).tenant.name, send)
