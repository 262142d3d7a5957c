"""What a backend's answer that is no success means to the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from slotgate.gateway.http.errors import CapacityError, GatewayError, UpstreamAnswer, UpstreamError

__all__ = ["LOADING", "error_of_answer", "error_of_event"]

Scrub = Callable[[bytes], bytes]
"""Takes what must not be seen out of a JSON text."""

PASSED = frozenset({400, 404, 413, 422, 500, 501})
"""Statuses that the client can make something of; they pass with their body."""
LOADING = "unavailable_error"
"""The type that llama-server gives the 503 which it answers while a model loads."""


def error_of_answer(status: int, body: bytes, scrub: Scrub = bytes) -> GatewayError:
    """The error for a whole answer of the backend with this status."""
    error = _cleaned(_error_object(body), scrub)
    if status in PASSED:
        return UpstreamAnswer(status, error)
    unclear = UpstreamError("upstream_broken", f"the backend answered with status {status}")
    return _ours(status, error) or unclear


def error_of_event(error: dict[str, Any], scrub: Scrub = bytes) -> GatewayError:
    """The error for an error inside a stream: its own code is the status, where it is one that passes."""
    error = _cleaned(error, scrub)
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return _ours(status, error) or UpstreamAnswer(status if status in PASSED else 502, error)


def _ours(status: int, error: dict[str, Any]) -> GatewayError | None:
    """What is between the gateway and its backend, and no business of the client's."""
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
    """The error of a body, in whatever shape it came."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"message": body[:500].decode(errors="replace") or "the backend gave no reason"}
    error = (parsed.get("error") or parsed) if isinstance(parsed, dict) else parsed
    return error if isinstance(error, dict) else {"message": str(error)[:500]}


def _cleaned(error: dict[str, Any], scrub: Scrub) -> dict[str, Any]:
    """Without paths of the backend's machine, and fit to be written."""
    try:
        cleaned: dict[str, Any] = orjson.loads(scrub(orjson.dumps(error)))
    except orjson.JSONEncodeError:  # nested more deeply than orjson writes
        return {}
    return cleaned
