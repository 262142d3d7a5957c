"""What a backend's answer that is no success means to the client."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.errors import CapacityError, GatewayError, UpstreamAnswer, UpstreamError

__all__ = ["LOADING", "error_of_answer"]

PASSED = frozenset({400, 404, 413, 422, 500, 501})
"""Statuses that the client can make something of; they pass with their body."""
LOADING = "unavailable_error"
"""The type that llama-server gives the 503 which it answers while a model loads."""


def error_of_answer(status: int, body: bytes) -> GatewayError:
    """The error for a whole answer of the backend with this status."""
    if status in (401, 403):
        return UpstreamError("upstream_auth", "the backend refused the gateway's own key")
    error = _error_object(body)
    if status in PASSED:
        return UpstreamAnswer(status, error)
    if status == 503:
        loading = error.get("type") == LOADING
        refusal = CapacityError(
            503, "no_backend", "the backend is loading its model" if loading else "the backend is busy"
        )
        refusal.retry_safe = loading
        return refusal
    return UpstreamError("upstream_broken", f"the backend answered with status {status}")


def _error_object(body: bytes) -> dict[str, Any]:
    """The error of a body, in whatever shape it came."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"message": body[:500].decode(errors="replace") or "the backend gave no reason"}
    error = (parsed.get("error") or parsed) if isinstance(parsed, dict) else parsed
    return error if isinstance(error, dict) else {"message": str(error)[:500]}
