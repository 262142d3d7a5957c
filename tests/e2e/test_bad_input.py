"""A faulty request gets one clear answer, costs nothing, and never reaches a backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.support.answer import WholeResponse, exchange, fetch
from tests.support.client import request_bytes
from tests.support.endpoints import WAYS, Way
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.notation import chunked
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

JSON = b"content-type: application/json"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
VALID = orjson.dumps({"messages": MESSAGES})


@asynccontextmanager
async def nothing_forwarded(**server: object) -> AsyncIterator[Gateway]:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server={"port": 0, **server})) as gateway:
        yield gateway
        assert not fu.generations
        assert gateway.scheduler.granted == 0


async def post(gateway: Gateway, body: bytes) -> WholeResponse:
    return await fetch(gateway.url, "POST", CHAT, JSON, body=body)


def with_value(value: bytes) -> bytes:
    return VALID[:-1] + b',"x":' + value + b"}"


# Bodies

NO_JSON = {
    "nothing": b"",
    "text": b"hello",
    "cut short": VALID[:-1],
    "trailing garbage": VALID + b" x",
    "two documents": VALID + VALID,
    "byte order mark": b"\xef\xbb\xbf" + VALID,
    "UTF-16": VALID.decode().encode("utf-16"),
    "single quotes": VALID.replace(b'"', b"'"),
    "comment": VALID + b"// x",
    "NaN": with_value(b"NaN"),
    "infinity": with_value(b"-Infinity"),
    "1e400": with_value(b"1e400"),
    "401 digits": with_value(b"1" + b"0" * 400),
    "depth 10,000": with_value(b"[" * 10_000 + b"]" * 10_000),
    "depth 10,000 of objects": with_value(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "depth 10,000, unclosed": b"[" * 10_000,
    "GBK": VALID.replace(b"hi", "你好".encode("gbk")),
    "a lone continuation byte": VALID.replace(b"hi", b"\x80"),
    "lone surrogate": VALID.replace(b"hi", b"x \\ud83d"),
    "surrogates in the wrong order": VALID.replace(b"hi", b"\\ude00\\ud83d"),
    "surrogate as UTF-8": VALID.replace(b"hi", b"\xed\xa0\xbd"),
    "control character": VALID.replace(b"hi", b"a\nb"),
    "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
}


@pytest.mark.parametrize("body", NO_JSON)
async def test_scenario_087_a_body_that_is_no_json_is_400_invalid_json(body: str) -> None:
    async with nothing_forwarded() as gateway:
        got = await post(gateway, NO_JSON[body])
    assert (got.status, got.error["code"]) == (400, "invalid_json")
    assert got.error["type"] == "invalid_request_error"
    assert got.header(b"x-slotgate-reason") == b"invalid_json"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[]", "an array"),
        (b'"text"', "a string"),
        (b"null", "null"),
        (b"7", "a number"),
        (b"1.5", "a number"),
        (b"true", "true or false"),
    ],
)
async def test_a_body_that_is_no_object_is_400_and_says_what_it_is(body: bytes, kind: str) -> None:
    async with nothing_forwarded() as gateway:
        got = await post(gateway, body)
    assert (got.status, got.error["code"]) == (400, "invalid_request")
    assert got.error["message"] == f"the request body must be a JSON object, and it is {kind}"


WRONG: dict[str, list[Any]] = {
    "messages": [None, "hi", {"role": "user"}, []],
    "stream": ["yes", 1, [], {}],
    "n": [0, -1, "2", 1.5, True, [2], 10**30],
    "max_tokens": ["x", "5", 1.5, True, [1]],
    "max_completion_tokens": ["x"],
    "model": [5, ["m"], {"m": 1}, False],
    "stream_options": [[], "x", 1, True],
}
INSIDE: list[tuple[dict[str, Any], str]] = [
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [*MESSAGES, None]}, "messages[1]"),
    ({"messages": [{"content": "hi"}]}, "messages[0]"),
    ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0]"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
]


@pytest.mark.parametrize(
    ("members", "param"),
    [*(({name: value}, name) for name, values in WRONG.items() for value in values), *INSIDE],
)
async def test_a_member_of_the_wrong_type_is_400_and_named(members: dict[str, Any], param: str) -> None:
    async with nothing_forwarded() as gateway:
        got = await post(gateway, json.dumps({"messages": MESSAGES} | members).encode())
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", param)
    assert param in got.error["message"]


async def test_messages_must_be_there() -> None:
    async with nothing_forwarded() as gateway:
        got = await post(gateway, b"{}")
    assert (got.status, got.error["param"]) == (400, "messages")


IMAGE_URL = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}


@pytest.mark.parametrize("way", [way for way in WAYS if not way.endpoint.multipart], ids=repr)
async def test_a_url_that_a_backend_would_fetch_is_400_in_the_endpoints_format(way: Way) -> None:
    name = next((name for name in ("messages", "input") if name in way.sample.body), "prompt")
    value = [{"role": "user", "content": [IMAGE_URL]}]
    async with nothing_forwarded() as gateway:
        got = await way.ask(gateway.url, **{name: value})
    assert (got.status, got.header(b"x-slotgate-reason")) == (400, b"invalid_request")
    error = got.json["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert error["param"] == f"{name}[0].content[0].image_url.url"
    assert (got.json.get("type") == "error") == way.path.startswith("/v1/messages")


async def test_a_reload_changes_from_where_media_may_be_fetched() -> None:
    fu = ScriptedUpstream()
    request = chat(messages=[{"role": "user", "content": [IMAGE_URL]}], stream=False)
    server = {"port": 0, "allowed_media_hosts": ["127.0.0.1:1"]}
    async with (
        fu,
        running_gateway(settings_for(fu.url), load=lambda: settings_for(fu.url, server=server)) as gateway,
    ):
        assert (await fetch(gateway.url, "POST", CHAT, json=request)).status == 400
        await gateway.app.reload()
        assert (await fetch(gateway.url, "POST", CHAT, json=request)).status == 200


@pytest.mark.parametrize("name", ["stream", "n", "max_tokens", "model", "stream_options", "stop", "tools"])
async def test_null_is_as_good_as_left_out(name: str) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await post(gateway, orjson.dumps({"messages": MESSAGES, name: None}))
    assert got.status == 200
    assert "choices" in got.json


# Sizes and times

LIMIT = 20_000


def padded(size: int) -> bytes:
    return VALID.replace(b"hi", b"x" * (size - len(VALID) + 2))


async def test_a_body_of_exactly_the_limit_is_served() -> None:
    fu = ScriptedUpstream()
    limits = {"port": 0, "max_body_bytes": LIMIT}
    async with fu, running_gateway(settings_for(fu.url, server=limits)) as gateway:
        got = await post(gateway, padded(LIMIT))
        assert len(fu.generations[0].body) == LIMIT
    assert got.status == 200


@pytest.mark.parametrize("announced", [LIMIT + 1, 10**12, 10**19])
async def test_a_body_that_is_announced_too_large_is_413_before_it_is_sent(announced: int) -> None:
    head = request_bytes("POST", CHAT, JSON, b"content-length: %d" % announced)
    async with nothing_forwarded(max_body_bytes=LIMIT) as gateway:
        got = await exchange(gateway.url, head)
    if announced < 10**19:  # more does not fit into the parser's counter
        assert (got.status, got.error["code"]) == (413, "body_too_large")
        assert str(LIMIT) in got.error["message"]
    assert got.status in (400, 413)


async def test_scenario_093_a_chunked_body_is_cut_off_one_byte_above_the_limit() -> None:
    """The end of the body never comes, and the gateway does not wait for it."""
    head = request_bytes("POST", CHAT, JSON, b"transfer-encoding: chunked")
    async with nothing_forwarded(max_body_bytes=LIMIT) as gateway:
        async with await gateway.client() as client:
            await client.send(head + chunked(padded(LIMIT)))
            with pytest.raises(TimeoutError):
                await client.head(within=0.1)
            await client.send(chunked(b" "))
            await client.head()
            assert client.status == 413
            assert (await client.json())["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("sent", [b"", VALID[:10]], ids=["nothing", "a part"])
async def test_a_body_that_does_not_come_in_time_is_408(sent: bytes) -> None:
    head = request_bytes("POST", CHAT, JSON, b"content-length: 100")
    async with nothing_forwarded(body_timeout_s=0.2) as gateway:
        got = await exchange(gateway.url, head + sent)
    assert (got.status, got.error["code"], got.error["type"]) == (408, "body_timeout", "timeout_error")


async def test_a_body_that_trickles_is_408_as_well() -> None:
    head = request_bytes("POST", CHAT, JSON, b"content-length: 100")
    async with nothing_forwarded(body_timeout_s=0.3) as gateway, await gateway.client() as client:
        await client.send(head)
        for byte in range(10):
            await client.send(VALID[byte : byte + 1])
            await asyncio.sleep(0.04)
        await client.head()
        assert client.status == 408


async def test_a_client_that_leaves_inside_its_body_is_gone_without_a_trace() -> None:
    head = request_bytes("POST", CHAT, JSON, b"content-length: 100")
    async with nothing_forwarded() as gateway:
        async with await gateway.client() as client:
            await client.send(head + b"{")
        await gateway.until(lambda: gateway.log.of("request"))
        [line] = gateway.log.of("request")
    assert (line["status"], line["outcome"], line["log_level"]) == (499, "client_gone", "info")


# Methods and paths

ALLOWED = {
    "/v1/chat/completions": {b"POST", b"OPTIONS"},
    "/chat/completions": {b"POST", b"OPTIONS"},
    "/v1/models": {b"GET", b"HEAD", b"OPTIONS"},
    "/v1/models/m": {b"GET", b"HEAD", b"OPTIONS"},
    "/health": {b"GET", b"HEAD", b"OPTIONS"},
    "/v1/health": {b"GET", b"HEAD", b"OPTIONS"},
    "/ready": {b"GET", b"HEAD", b"OPTIONS"},
}


@pytest.mark.parametrize("path", ALLOWED)
async def test_other_methods_are_405_with_the_allowed_methods(path: str) -> None:
    async with nothing_forwarded() as gateway:
        options = await fetch(gateway.url, "OPTIONS", path)
        others = {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - {m.decode() for m in ALLOWED[path]}
        refused = [await fetch(gateway.url, method, path, JSON, body=VALID) for method in sorted(others)]
    assert (options.status, options.body) == (200, b"")
    for got in [options, *refused]:
        assert set((got.header(b"allow") or b"").split(b", ")) == ALLOWED[path]
    assert {(got.status, got.error["code"]) for got in refused} == {(405, "method_not_allowed")}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/chat/completions/",
        "/chat/completions/",
        "//v1/chat/completions",
        "/v1/chat/completions/x",
        "/v1/chat/completions%2F",
        "/V1/chat/completions",
        "/health/",
        "/slots",
        "/slots/0?action=erase",
        "/props",
        "/lora-adapters",
        "/v1/stream?conv_id=1",
        "/tools",
        "/%ff%00",
        "/v1/models%0d%0aset-cookie:%20a=b",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_scenario_096_every_other_path_is_404_and_never_a_redirect(method: str, path: str) -> None:
    async with nothing_forwarded() as gateway:
        got = await fetch(gateway.url, method, path, JSON, b"x-forwarded-proto: https", body=VALID)
    assert (got.status, got.error["code"]) == (404, "unknown_path")
    assert got.error["type"] == "invalid_request_error"
    assert got.header(b"location") is None


async def test_a_connection_serves_on_after_a_refused_request() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        for body in (chat(messages=[]), chat(stream=False), {"stream": 1}, chat(stream=False)):
            await client.post(CHAT, body)
            await client.body()
        assert client.status == 200
        assert len(fu.generations) == 2
