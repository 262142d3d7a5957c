"""`POST /v1/requests/{id}/cancel`: a tenant cancels a request of its own, queued or running."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from slotgate.gateway.forwarding.cancel import cancel
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.http.context import context_of

__all__ = ["CancelRequest"]


class CancelRequest:
    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await cancel(self._in_flight, scope["path_params"]["id"], context_of(scope).tenant.name, send)
