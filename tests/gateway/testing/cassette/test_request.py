"""The requests that are equal for a cassette, and the parts of them that it keeps."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slotgate.gateway.http.headers import Headers
from slotgate.gateway.testing.cassette.request import RecordedRequest, as_recorded

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 1}


def request_of(
    body: bytes | dict[str, Any], *, query: str = "", headers: Headers | None = None
) -> RecordedRequest:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return as_recorded("POST", "/v1/chat/completions", query, headers or [], content)[0]


def form(boundary: bytes, *parts: bytes) -> RecordedRequest:
    body = b"".join(b"--%b\r\nContent-Disposition: form-data; %b" % (boundary, part) for part in parts)
    content_type = (b"content-type", b"multipart/form-data; boundary=" + boundary)
    return request_of(body + b"--%b--\r\n" % boundary, headers=[content_type])


@pytest.mark.parametrize(
    "same",
    [
        dict(reversed(CHAT.items())),
        {**CHAT, "temperature": 1.0},
        {**CHAT, "user": "u-1", "metadata": {"run": 7}, "request_id": "r"},
        {**CHAT, "top_p": None, "stream": False},
    ],
    ids=["order of members", "1.0 is 1", "volatile members", "members that say nothing"],
)
def test_equal_requests_match(same: dict[str, Any]) -> None:
    assert request_of(CHAT).key == request_of(same).key


@pytest.mark.parametrize(
    "other",
    [
        {**CHAT, "temperature": 2},
        {**CHAT, "stream": True},
        {**CHAT, "messages": [{"role": "user", "content": "hi", "user": "u-1"}]},
        {**CHAT, "temperature": True},
    ],
    ids=["a value", "streaming", "a volatile name deeper down", "true is not 1"],
)
def test_different_requests_do_not_match(other: dict[str, Any]) -> None:
    assert request_of(CHAT).key != request_of(other).key


def test_method_path_and_query_are_compared_and_headers_are_not() -> None:
    requests = [
        as_recorded("POST", "/a", "", [], b"")[0],
        as_recorded("PUT", "/a", "", [], b"")[0],
        as_recorded("POST", "/b", "", [], b"")[0],
        as_recorded("POST", "/a", "x=1", [], b"")[0],
    ]
    assert len({request.key for request in requests}) == 4
    assert request_of(CHAT, query="b=2&a=1").key == request_of(CHAT, query="a=1&b=2").key
    assert request_of(CHAT, headers=[(b"user-agent", b"x")]).key == request_of(CHAT).key


def test_forms_are_compared_by_their_parts_and_not_by_their_boundary() -> None:
    audio = b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n\0\xff\r\n'
    model = b'name="model"\r\n\r\nwhisper\r\n'
    first, second = form(b"one", model, audio), form(b"two2two", model, audio)
    assert first.key == second.key
    assert first.content["form"][0] == {"name": "model", "text": "whisper"}
    assert (first.content["form"][1]["filename"], first.content["form"][1]["bytes"]) == ("a.wav", 8)
    assert form(b"one", model, audio.replace(b"RIFF", b"RAFF")).key != first.key


@pytest.mark.parametrize(
    "body", [b"not json", b"\xff\xfe", b"[" * 100_000, b'{"a":', b"null", b'"\\ud800"', b"7"]
)
def test_any_body_has_a_key_and_survives_a_round_trip(body: bytes) -> None:
    request = request_of(body)
    assert RecordedRequest.from_facts(request.facts()) == request
    assert RecordedRequest.from_facts(request.facts()).key == request.key


def test_secrets_are_not_recorded_and_not_compared() -> None:
    def asked(key: str) -> RecordedRequest:
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"cookie", f"s={key}".encode())]
        body = CHAT | {"api_key": key, "tools": [{"auth": {"Access-Token": key}}], "note": f"my key is {key}"}
        return request_of(body, query=f"key={key}&a=1", headers=headers)

    one, two = asked("canary-key-0000001"), asked("canary-key-0000002")
    assert "canary" not in str(one.facts())
    assert one.key == two.key


def test_a_member_named_as_a_key_is_left_out_even_if_it_is_short() -> None:
    asked = request_of(
        {"deep": [{"api_key": "abc", "Client-Secret": "def"}], "max_tokens": 7}, query="token=ghi&a=1"
    )
    assert asked.content["json"] == {
        "deep": [{"Client-Secret": "[removed]", "api_key": "[removed]"}],
        "max_tokens": 7,
    }
    assert asked.query == (("a", "1"), ("token", "[removed]"))


def test_a_schema_with_a_password_member_is_kept() -> None:
    tool = {"parameters": {"properties": {"password": {"type": "string"}}}}
    assert request_of(CHAT | {"tools": [tool]}).content["json"]["tools"] == [tool]
