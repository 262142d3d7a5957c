"""Errors have one format, with all that a client needs."""

from __future__ import annotations

import orjson
import pytest

from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError, UpstreamError


def test_an_error_has_openai_s_format() -> None:
    error = ClientError("invalid_request", "n must be a whole number", param="n")
    assert orjson.loads(error.body()) == {
        "error": {
            "message": "n must be a whole number",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }
    assert error.headers() == [(b"x-slotgate-reason", b"invalid_request")]
    assert repr(error) == "<ClientError 400 invalid_request: n must be a whole number>"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ClientError("body_too_large", "", status=413), 413, "invalid_request_error"),
        (ClientError("body_timeout", "", status=408, kind="timeout_error"), 408, "timeout_error"),
        (CapacityError(429, "queue_full", ""), 429, "rate_limit_error"),
        (CapacityError(503, "queue_timeout", ""), 503, "overloaded_error"),
        (UpstreamError("upstream_truncated", ""), 502, "upstream_error"),
        (UpstreamError("idle_timeout", "", status=504), 504, "timeout_error"),
    ],
)
def test_an_error_knows_its_status_and_type(error: GatewayError, status: int, kind: str) -> None:
    assert (status, kind, False) == (error.status, error.kind, error.retry_safe)


@pytest.mark.parametrize(
    ("estimate", "said"), [(None, b"1"), (0, b"1"), (0.2, b"1"), (1.2, b"2"), (60, b"60")]
)
def test_a_refusal_says_when_to_retry(estimate: float | None, said: bytes) -> None:
    error = CapacityError(429, "queue_full", "", retry_after_s=estimate)
    assert [(b"x-slotgate-reason", b"queue_full"), (b"retry-after", said)] == error.headers()


def test_only_work_that_has_not_begun_may_be_retried() -> None:
    assert UpstreamError("upstream_unreachable", "", retry_safe=True).retry_safe
