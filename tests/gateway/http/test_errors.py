"""Every error says what it is in one shape, with what the client needs to go on."""

import orjson
import pytest

from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError, Source, UpstreamError


def test_an_error_is_rendered_in_the_shape_of_openai() -> None:
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
    ("error", "status", "kind", "source"),
    [
        (ClientError("body_too_large", "", status=413), 413, "invalid_request_error", Source.DOWNSTREAM),
        (
            ClientError("body_timeout", "", status=408, kind="timeout_error"),
            408,
            "timeout_error",
            Source.DOWNSTREAM,
        ),
        (CapacityError(429, "queue_full", ""), 429, "rate_limit_error", Source.GATEWAY),
        (CapacityError(503, "queue_timeout", ""), 503, "overloaded_error", Source.GATEWAY),
        (UpstreamError("upstream_truncated", ""), 502, "upstream_error", Source.UPSTREAM),
        (UpstreamError("idle_timeout", "", status=504), 504, "timeout_error", Source.UPSTREAM),
    ],
)
def test_an_error_knows_its_status_its_type_and_whose_it_is(
    error: GatewayError, status: int, kind: str, source: Source
) -> None:
    assert (status, kind, source, False) == (error.status, error.kind, error.source, error.retry_safe)


@pytest.mark.parametrize(
    ("estimate", "said"), [(None, b"1"), (0, b"1"), (0.2, b"1"), (1.2, b"2"), (60, b"60")]
)
def test_a_refusal_says_when_to_come_back(estimate: float | None, said: bytes) -> None:
    error = CapacityError(429, "queue_full", "", retry_after_s=estimate)
    assert [(b"x-slotgate-reason", b"queue_full"), (b"retry-after", said)] == error.headers()


def test_only_work_that_has_not_begun_may_be_tried_again() -> None:
    assert UpstreamError("upstream_unreachable", "", retry_safe=True).retry_safe
