"""An error answer of a backend is passed on with its fields, or replaced by one of our own."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slotgate.gateway.api.upstream_errors import error_of_answer, error_of_event
from slotgate.gateway.http.errors import CapacityError, GatewayError, UpstreamAnswer, UpstreamError
from tests.support.notation import error_body

Json = dict[str, Any]
OVERFLOW = {
    "code": 400,
    "message": "request (6009 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 6009,
    "n_ctx": 4096,
}


def told(error: GatewayError) -> Json:
    body: Json = orjson.loads(error.body())
    assert list(body) == ["error"]
    inside: Json = body["error"]
    return inside


def reason(error: GatewayError) -> bytes:
    return dict(error.headers())[b"x-slotgate-reason"]


@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 501])
def test_scenario_068_errors_about_the_request_pass_with_all_fields(status: int) -> None:
    error = error_of_answer(status, orjson.dumps({"error": OVERFLOW}))
    assert isinstance(error, UpstreamAnswer)
    assert (status, False) == (error.status, error.retry_safe)
    assert told(error) == OVERFLOW
    assert list(OVERFLOW) == list(told(error))


def test_scenario_070_a_context_overflow_with_status_500_is_not_retried() -> None:
    error = error_of_answer(500, error_body(500, "Context size has been exceeded.", "server_error"))
    assert (error.status, error.retry_safe) == (500, False)
    assert told(error) == {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_upstream_key_is_an_upstream_auth_error(status: int) -> None:
    error = error_of_answer(status, error_body(status, "Invalid API Key: sk-secret", "authentication_error"))
    assert isinstance(error, UpstreamError)
    assert (error.status, error.code, error.kind) == (502, "upstream_auth", "upstream_error")
    assert b"secret" not in error.body()


def test_scenario_074_a_retry_is_safe_while_the_backend_loads() -> None:
    error = error_of_answer(503, error_body(503, "Loading model", "unavailable_error"))
    assert isinstance(error, CapacityError)
    assert (
        error.status,
        error.code,
        error.kind,
        error.retry_safe,
    ) == (503, "no_backend", "overloaded_error", True)
    assert (b"retry-after", b"1") in error.headers()


@pytest.mark.parametrize("body", [b"", b"<html>", error_body(503, "no slot", "server_error"), b"[]"])
def test_a_retry_is_not_safe_after_any_other_503(body: bytes) -> None:
    error = error_of_answer(503, body)
    assert (error.status, error.code, error.retry_safe) == (503, "no_backend", False)


@pytest.mark.parametrize("status", [200, 204, 302, 402, 502, 504, 599])
def test_other_statuses_mean_a_broken_backend(status: int) -> None:
    error = error_of_answer(status, b'{"error":{"message":"no"}}')
    assert (error.status, error.code) == (502, "upstream_broken")
    assert str(status) in error.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"text"}', "text"),
        (b'{"error":["a"]}', "['a']"),
        (b'{"message":"bare","code":400}', "bare"),
        (b'"text"', "text"),
        (b"plain text", "plain text"),
        (b"caf\xff", "caf\ufffd"),
        (b"x" * 9000, "x" * 500),
        (b"", "the backend gave no reason"),
        (b"{}", "the backend reported an error"),
        (b'{"error":null}', "the backend reported an error"),
        (b'{"error":{"message":{"a":1}}}', "the backend reported an error"),
        (b'{"detail":"Not Found"}', "the backend reported an error"),
    ],
)
def test_scenario_072_every_error_has_message_type_and_code(body: bytes, message: str) -> None:
    error = told(error_of_answer(400, body))
    assert (message, "upstream_error") == (error["message"], error["type"])
    assert error["code"] in (400, "upstream_error")


def test_unknown_fields_of_an_error_stay() -> None:
    assert told(error_of_answer(404, b'{"detail":"Not Found"}'))["detail"] == "Not Found"


@pytest.mark.parametrize("code", ["a\r\nset-cookie: x=1", "é", "", "a b", "x" * 200, 400, None, ["a"]])
def test_a_code_with_other_characters_does_not_become_a_header(code: object) -> None:
    error = error_of_answer(400, orjson.dumps({"error": {"message": "m", "code": code}}))
    assert (error.code, reason(error)) == ("upstream_error", b"upstream_error")


def test_a_code_of_letters_becomes_the_reason_header() -> None:
    error = error_of_answer(400, b'{"error":{"message":"m","code":"context_length_exceeded"}}')
    assert reason(error) == b"context_length_exceeded"


# Errors inside a stream


def test_the_code_of_an_error_event_is_its_status() -> None:
    def status(code: object) -> int:
        return error_of_event({"message": "m", "code": code}, lambda text: text).status

    assert [status(code) for code in (400, 422, 501)] == [400, 422, 501]
    assert [status(code) for code in (402, 502, 504, 599)] == [502] * 4, "as an answer of that status"
    assert [status(code) for code in (429, 503)] == [503] * 2
    assert [status(code) for code in (200, 399, 600, "400", None, True)] == [500] * 6


def test_scenario_088_an_error_event_does_not_show_the_path_of_the_model() -> None:
    error = error_of_event(
        {"message": "failed to load /srv/m.gguf", "code": 500, "x": ["/srv/m.gguf"]},
        lambda text: text.replace(b"/srv/m.gguf", b"public"),
    )
    assert told(error) == {
        "message": "failed to load public",
        "code": 500,
        "x": ["public"],
        "type": "upstream_error",
    }
