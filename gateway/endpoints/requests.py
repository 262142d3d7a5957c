"""`POST /v1/requests/{id}/cancel`: a tenant ends a request of its own, wherever that is on its way."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.context import context_of
from gateway.errors import ClientError
from gateway.live import LiveAnswers
from gateway.replies import send_json

__all__ = ["CancelRequest", "cancel"]


class CancelRequest:
    def __init__(self, live: LiveAnswers) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await cancel(self._live, scope["path_params"]["id"], context_of(scope).tenant.name, send)


async def cancel(live: LiveAnswers, request_id: str, tenant: str | None, send: Send) -> None:
    """End the live requests with this id, of this tenant or of any, and say how many there were."""
    cancelled = live.cancel(request_id, tenant)
    if not cancelled:
        raise ClientError("request_not_found", "no request of this id is under way", status=404)
    await send_json(send, 200, {"id": request_id, "cancelled": cancelled})
