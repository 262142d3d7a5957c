"""Access to the gateway: known keys if there are tenants, and no pages of other sites if there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import WholeResponse, exchange, fetch
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import H, T, answer, chunked, error_body
from tests.support.script import Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KEY = b"sg-right"
JSON = b"content-type: application/json"


def tenant(name: str = "a", key: bytes = KEY, **members: object) -> dict[str, Any]:
    return {"name": name, "key_hashes": [hash_key(key)], **members}


def bearer(key: bytes = KEY) -> bytes:
    return b"authorization: Bearer " + key


# Keys

REFUSED: dict[str, Sequence[bytes]] = {
    "none": [],
    "bearer alone": [b"authorization: Bearer"],
    "bearer and a space": [b"authorization: Bearer "],
    "nothing": [b"authorization:"],
    "another scheme": [b"authorization: Basic c2ctcmlnaHQ="],
    "no scheme": [b"authorization: " + KEY],
    "a wrong key": [bearer(b"sg-wrong")],
    "a longer key": [bearer(KEY + b"x")],
    "a shorter key": [bearer(KEY[:-1])],
    "another case": [bearer(KEY.upper())],
    "a byte that is not ASCII": [bearer(b"caf\xe9")],
    "bytes that are no UTF-8": [bearer(b"\xff\xfe\xfd")],
    "60 KiB": [bearer(b"x" * 60 * 1024)],
    "two keys in one": [bearer(KEY + b" " + KEY)],
    "two headers, the right key first": [bearer(), bearer(b"sg-wrong")],
    "two headers, the right key last": [bearer(b"sg-wrong"), bearer()],
    "a wrong x-api-key": [b"x-api-key: sg-wrong"],
    "an empty x-api-key": [b"x-api-key:"],
    "two that differ": [bearer(), b"x-api-key: sg-wrong"],
    "the hash": [bearer(hash_key(KEY).encode())],
}
KNOWN: dict[str, Sequence[bytes]] = {
    "bearer": [bearer()],
    "lower case": [b"authorization: bearer " + KEY],
    "upper case, spaces": [b"AUTHORIZATION: BEARER   " + KEY + b"  "],
    "x-api-key": [b"x-api-key: " + KEY],
    "both": [bearer(), b"x-api-key: " + KEY],
    "the same twice": [bearer(), bearer()],
}


@pytest.mark.parametrize("case", REFUSED)
async def test_scenario_100_an_unknown_key_is_401(case: str) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        answers = [
            await fetch(gateway.url, "POST", CHAT, *REFUSED[case], json=chat()),
            await fetch(gateway.url, "GET", "/v1/models", *REFUSED[case]),
            await fetch(gateway.url, "GET", "/nowhere?key=sg-right", *REFUSED[case]),
        ]
        assert not fu.generations
    for got in answers:
        assert (got.status, got.error["code"]) == (401, "invalid_api_key")
        assert got.error["type"] == "authentication_error"
        assert got.header(b"www-authenticate") == b"Bearer"


async def test_scenario_100_a_token_of_100_kib_is_too_much_for_a_header() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        got = await ask(gateway.url, bearer(b"x" * 100 * 1024))
    assert (got.status, got.error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("case", KNOWN)
async def test_a_known_key_is_let_in(case: str) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        got = await ask(gateway.url, *KNOWN[case], stream=False)
        [line] = gateway.log.of("request")
    assert got.status == 200
    assert line["tenant"] == "a"


async def test_without_a_key_no_body_is_waited_for() -> None:
    head = request_bytes("POST", CHAT, JSON, b"content-length: 1000000")
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        got = await exchange(gateway.url, head)
    assert got.status == 401


async def test_health_checks_need_no_key() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        answers = [await fetch(gateway.url, "GET", path) for path in ("/health", "/v1/health", "/ready")]
    assert [got.status for got in answers] == [200, 200, 200]


# -- models of a key


async def test_a_key_sees_and_uses_the_models_that_it_may() -> None:
    fu = ScriptedUpstream()
    tenants = [
        tenant("one", b"sg-one", models=["small"]),
        tenant("alias", b"sg-alias", models=["gpt"]),
        tenant("all", b"sg-all"),
    ]
    async with fu:
        backend = {"name": "gpu0", "url": fu.url, "models": ["small", "large"]}
        models = [{"name": "large", "aliases": ["gpt"]}]
        settings = settings_for(backend=[backend], model=models, tenant=tenants)
        async with running_gateway(settings) as gateway:
            seen, used = {}, {}
            for name in ("one", "alias", "all"):
                key = bearer(f"sg-{name}".encode())
                listed = await fetch(gateway.url, "GET", "/v1/models", key)
                seen[name] = [entry["id"] for entry in listed.json["data"]]
                used[name] = [
                    (await ask(gateway.url, key, stream=False, model=model)).status
                    for model in ("small", "large", "gpt", "none")
                ]
            refused = await ask(gateway.url, bearer(b"sg-one"), model="large")
            hidden = await fetch(gateway.url, "GET", "/v1/models/large", bearer(b"sg-one"))
            unnamed = await ask(gateway.url, bearer(b"sg-one"), stream=False)
    assert seen == {"one": ["small"], "alias": ["gpt", "large"], "all": ["gpt", "large", "small"]}
    assert used == {"one": [200, 403, 403, 404], "alias": [403, 200, 200, 404], "all": [200, 200, 200, 404]}
    assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")
    assert (refused.error["type"], refused.error["param"]) == ("permission_error", "model")
    assert (hidden.status, hidden.error["code"]) == (403, "model_not_allowed")
    assert unnamed.json["model"] == "small"


# Without keys: no foreign page


async def from_page(url: str, host: bytes, *headers: bytes, method: bytes = b"POST") -> WholeResponse:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    lines = [method + b" " + CHAT.encode() + b" HTTP/1.1", host, *headers, b"content-length: %d" % len(body)]
    return await exchange(url, b"\r\n".join(lines) + b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1",
        b"127.0.0.1:8080",
        b"localhost:8080",
        b"LOCALHOST",
        b"[::1]:80",
        b"127.9.9.9",
        b"gpu.lan:1",
    ],
)
async def test_loopback_names_and_allowed_ones_pass_as_host(host: bytes) -> None:
    fu = ScriptedUpstream()
    server = {"port": 0, "allowed_hosts": ["gpu.lan"]}
    async with fu, running_gateway(settings_for(fu.url, server=server)) as gateway:
        got = await from_page(gateway.url, b"host: " + host, JSON)
    assert got.status == 200


@pytest.mark.parametrize(
    "host",
    [
        b"host: evil.example",
        b"host: evil.example:8080",
        b"host: localhost.evil.example",
        b"host: 127.0.0.1.evil.example",
        b"host: 10.0.0.1",
        b"host: 0.0.0.0",
        b"host: [::2]",
        b"host: [::1",
        b"host:",
        b"host: caf\xe9",
    ],
)
async def test_any_other_host_is_403(host: bytes) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await from_page(gateway.url, host, JSON)
        assert not fu.generations
        health = request_bytes("GET", "/health").replace(b"Host: 127.0.0.1", b"Host: evil.example")
        assert (await exchange(gateway.url, health)).status == 200
    assert (got.status, got.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"http://localhost:8080", 200),
        (b"http://localhost:3000", 403),
        (b"http://127.0.0.1:8080", 403),
        (b"https://evil.example", 403),
        (b"null", 403),
        (b"", 403),
        (b"\xff", 403),
        (b"http://[", 403),
    ],
)
async def test_a_foreign_origin_is_403_without_keys(origin: bytes, status: int) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await from_page(gateway.url, b"host: localhost:8080", JSON, b"origin: " + origin)
        assert len(fu.generations) == (status == 200)
    assert got.status == status
    if status == 403:
        assert (got.error["code"], got.error["type"]) == ("origin_not_allowed", "permission_error")


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        (b"cross-site", b"no-cors", 403),
        (b"same-site", b"no-cors", 403),
        (b"same-origin", b"cors", 200),
        (b"none", b"navigate", 200),
        (b"cross-site", b"navigate", 200),
    ],
)
async def test_pictures_of_other_sites_are_403_and_links_are_followed(
    site: bytes, mode: bytes, status: int
) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        says = (b"sec-fetch-site: " + site, b"sec-fetch-mode: " + mode)
        got = await fetch(gateway.url, "GET", "/v1/models", *says)
        posted = await from_page(gateway.url, b"host: localhost", JSON, *says)
    assert got.status == status
    assert posted.status == (200 if site in (b"same-origin", b"none") else 403)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (b"application/json", 200),
        (b"Application/JSON; charset=utf-8", 200),
        (b"text/plain", 415),
        (b"text/plain; application/json", 415),
        (b"application/x-www-form-urlencoded", 415),
        (b"", 415),
    ],
)
async def test_a_content_type_that_a_form_can_send_is_415_without_keys(kind: bytes, status: int) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await from_page(gateway.url, b"host: localhost", b"content-type: " + kind)
        assert len(fu.generations) == (status == 200)
    assert got.status == status


async def test_a_gateway_with_keys_accepts_any_host_origin_and_content_type() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=[tenant()])) as gateway:
        page = [b"origin: https://evil.example", b"content-type: text/plain", bearer()]
        got = await from_page(gateway.url, b"host: evil.example", *page)
    assert got.status == 200
    assert got.header(b"access-control-allow-origin") is None


# Pages that are allowed

PAGE = b"https://app.example"
FROM_PAGE = b"origin: " + PAGE
WITH_PAGE = {"port": 0, "cors_origins": [PAGE.decode()]}
PREFLIGHT = [
    b"access-control-request-method: POST",
    b"access-control-request-headers: authorization,content-type,x-stainless-os",
]


def allows(got: WholeResponse) -> list[bytes]:
    return got.head.all(b"access-control-allow-origin")


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nowhere"])
async def test_scenario_097_a_preflight_needs_no_key(path: str) -> None:
    fu = ScriptedUpstream()
    tenants = [tenant()]
    async with fu, running_gateway(settings_for(fu.url, server=WITH_PAGE, tenant=tenants)) as gateway:
        got = await fetch(gateway.url, "OPTIONS", path, FROM_PAGE, *PREFLIGHT)
    assert (got.status, got.body) == (204, b"")
    assert allows(got) == [PAGE]
    allowed = (got.header(b"access-control-allow-headers") or b"").lower()
    assert all(name in allowed for name in (b"authorization", b"content-type", b"x-stainless-os"))
    assert b"POST" in (got.header(b"access-control-allow-methods") or b"")
    assert b"Origin" in (got.header(b"vary") or b"")
    assert got.header(b"content-length") in (None, b"0")


async def test_scenario_097_every_answer_to_an_allowed_page_can_be_read() -> None:
    """200 as JSON and as a stream, 400, 401, 404, 429 and the backend's own 400: one header each."""
    scripts: dict[str, Script] = {
        "stall": [Write(H + chunked(T("a"))), Stall()],
        "bad": [Write(answer(400, error_body(400, "no", "x"), b"Access-Control-Allow-Origin: *"))],
    }
    fu = ScriptedUpstream(lambda r: scripts.get(r.json()["messages"][0]["content"]), llama=LlamaLike(2))
    tenants = [tenant(max_concurrent=1)]
    async with fu, running_gateway(settings_for(fu.url, server=WITH_PAGE, tenant=tenants)) as gateway:
        answers = [
            await ask(gateway.url, FROM_PAGE, bearer(), stream=False),
            await ask(gateway.url, FROM_PAGE, bearer(), stream=True),
            await ask(gateway.url, FROM_PAGE, bearer(), n=9),
            await ask(gateway.url, FROM_PAGE),
            await fetch(gateway.url, "GET", "/nowhere", FROM_PAGE, bearer()),
            await ask(gateway.url, FROM_PAGE, bearer(), **chat("bad")),
        ]
        async with await gateway.client() as client:
            await client.post(CHAT, chat("stall"), bearer())
            answers.append(await ask(gateway.url, FROM_PAGE, bearer()))
    assert [got.status for got in answers] == [200, 200, 400, 401, 404, 400, 429]
    assert [allows(got) for got in answers] == [[PAGE]] * 7
    assert answers[-1].error["code"] == "tenant_concurrency"
    exposed = answers[-1].header(b"access-control-expose-headers") or b""
    assert all(name in exposed.lower() for name in (b"retry-after", b"x-request-id", b"x-slotgate-reason"))


async def test_scenario_097_another_page_gets_no_permission() -> None:
    fu = ScriptedUpstream()
    tenants = [tenant()]
    async with fu, running_gateway(settings_for(fu.url, server=WITH_PAGE, tenant=tenants)) as gateway:
        evil = b"origin: https://evil.example"
        answers = [
            await fetch(gateway.url, "OPTIONS", CHAT, evil, *PREFLIGHT),
            await ask(gateway.url, evil, bearer()),
            await ask(gateway.url, evil),
        ]
    assert [allows(got) for got in answers] == [[], [], []]
    assert answers[0].status == 400


async def test_an_allowed_page_may_use_a_gateway_without_keys() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=WITH_PAGE)) as gateway:
        got = await ask(gateway.url, FROM_PAGE, stream=False)
        evil = await ask(gateway.url, b"origin: https://evil.example", stream=False)
    assert (got.status, allows(got)) == (200, [PAGE])
    assert (evil.status, allows(evil)) == (403, [])
