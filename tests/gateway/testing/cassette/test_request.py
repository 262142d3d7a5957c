"""Which requests are the same for a cassette, and what of them it keeps."""

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
def test_requests_that_ask_the_same_match(same: dict[str, Any]) -> None:
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
def test_requests_that_ask_something_else_do_not(other: dict[str, Any]) -> None:
    assert request_of(CHAT).key != request_of(other).key


def test_the_method_the_path_and_the_query_are_matched_and_headers_are_not() -> None:
    requests = [
        as_recorded("POST", "/a", "", [], b"")[0],
        as_recorded("PUT", "/a", "", [], b"")[0],
        as_recorded("POST", "/b", "", [], b"")[0],
        as_recorded("POST", "/a", "x=1", [], b"")[0],
    ]
    assert len({request.key for request in requests}) == 4
    assert request_of(CHAT, query="b=2&a=1").key == request_of(CHAT, query="a=1&b=2").key
    assert request_of(CHAT, headers=[(b"user-agent", b"x")]).key == request_of(CHAT).key


def test_a_form_is_matched_by_its_parts_whatever_its_boundary() -> None:
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
def test_any_body_has_a_key_and_comes_back_from_its_facts(body: bytes) -> None:
    request = request_of(body)
    assert RecordedRequest.from_facts(request.facts()) == request
    assert RecordedRequest.from_facts(request.facts()).key == request.key


def test_keys_leave_no_trace_and_make_no_difference() -> None:
    def asked(key: str) -> RecordedRequest:
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"cookie", f"s={key}".encode())]
        body = CHAT | {"api_key": key, "tools": [{"auth": {"Access-Token": key}}], "note": f"my key is {key}"}
        return request_of(body, query=f"key={key}&a=1", headers=headers)

    one, two = asked("canary-key-0000001"), asked("canary-key-0000002")
    assert "canary" not in str(one.facts())
    assert one.key == two.key


def test_what_is_called_a_key_is_left_out_however_short_it_is() -> None:
    asked = request_of(
        {"deep": [{"api_key": "abc", "Client-Secret": "def"}], "max_tokens": 7}, query="token=ghi&a=1"
    )
    assert asked.content["json"] == {
        "deep": [{"Client-Secret": "[removed]", "api_key": "[removed]"}],
        "max_tokens": 7,
    }
    assert asked.query == (("a", "1"), ("token", "[removed]"))


def test_a_schema_that_describes_a_password_is_kept() -> None:
    tool = {"parameters": {"properties": {"password": {"type": "string"}}}}
    assert request_of(CHAT | {"tools": [tool]}).content["json"]["tools"] == [tool]
