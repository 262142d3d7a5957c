"""Cancelling requests by their id."""

from __future__ import annotations

from starlette.types import Send

from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.replies import send_json

__all__ = ["cancel"]


async def cancel(live: InFlight, request_id: str, tenant: str | None, send: Send) -> None:
    """Cancel the live requests with this id, and answer with their number.

    With `tenant`, only requests of this tenant count. Raises `ClientError` 404 if there is none.
    """
    cancelled = live.cancel(request_id, tenant)
    if not cancelled:
        raise ClientError("request_not_found", "no request of this id is under way", status=404)
    await send_json(send, 200, {"id": request_id, "cancelled": cancelled})
