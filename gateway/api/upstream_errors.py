"""Translating a backend's failures into errors for the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from slotgate.gateway.http.errors import CapacityError, GatewayError, UpstreamAnswer, UpstreamError

__all__ = ["LOADING", "error_of_answer", "error_of_event"]

Scrub = Callable[[bytes], bytes]
"""Removes from a JSON text what clients must not see, such as paths of the backend's machine."""

_PASSED = frozenset({400, 404, 413, 422, 500, 501, 508})
"""Statuses that pass to the client with their body, because they are about its request."""
LOADING = "unavailable_error"
"""The error type of the 503 that llama-server answers while its model loads."""

CONTEXT_EXCEEDED = "Context size has been exceeded"
"""With this, llama-server ends all requests when the context that they share is full. It has no code."""


def error_of_answer(status: int, body: bytes, scrub: Scrub = bytes) -> GatewayError:
    """Return the error for a backend's response with this status."""
    error = _cleaned(_error_object(body), scrub)
    if status in _PASSED:
        return _forwarded(status, error)
    unclear = UpstreamError("upstream_broken", f"the backend answered with status {status}")
    return _ours(status, error) or unclear


def error_of_event(error: dict[str, Any], scrub: Scrub = bytes) -> GatewayError:
    """Return the error for an error event inside a stream. Its `code` counts as the status."""
    error = _cleaned(error, scrub)
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return _ours(status, error) or _forwarded(status if status in _PASSED else 502, error)


def _forwarded(status: int, error: dict[str, Any]) -> UpstreamAnswer:
    answer = UpstreamAnswer(status, error)
    answer.context_exceeded = status >= 500 and answer.message.startswith(CONTEXT_EXCEEDED)
    return answer


def _ours(status: int, error: dict[str, Any]) -> GatewayError | None:
    """Return an error of the gateway's own for a status that is not about the client's request, else None."""
    if status in (401, 403):
        return UpstreamError("upstream_auth", "the backend refused the gateway's own key")
    if status in (429, 503):
        loading = error.get("type") == LOADING
        refusal = CapacityError(
            503, "no_backend", "the backend is loading its model" if loading else "the backend is busy"
        )
        refusal.retry_safe = loading
        return refusal
    return None


def _error_object(body: bytes) -> dict[str, Any]:
    """Return the error object of a body, which may be JSON in any form, or text."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"message": body[:500].decode(errors="replace") or "the backend gave no reason"}
    error = (parsed.get("error") or parsed) if isinstance(parsed, dict) else parsed
    return error if isinstance(error, dict) else {"message": str(error)[:500]}


def _cleaned(error: dict[str, Any], scrub: Scrub) -> dict[str, Any]:
    """Return the error without what clients must not see; empty if it is nested too deeply to be written."""
    try:
        cleaned: dict[str, Any] = orjson.loads(scrub(orjson.dumps(error)))
    except orjson.JSONEncodeError:
        return {}
    return cleaned
