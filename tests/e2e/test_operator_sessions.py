"""The operator in a browser: signing in and out, and the limits of the session cookie."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.auth.operators import Operators
from slotgate.gateway.auth.sign_in_limiter import A_MINUTE
from slotgate.gateway.backends.backend import BackendState
from tests.e2e.test_reload import Configuration
from tests.support.answer import WholeResponse, exchange, fetch
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KEY = "sg-operator"
BEARER = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key(KEY)]}
TENANTS = [{"name": "a", "key_hashes": [hash_key("sg-a")]}]
SESSION = "/admin/session"
ORIGIN = b"origin: http://127.0.0.1"
"""The origin of the gateway's own pages: the host that the test client sends."""


def settings(url: str = "http://127.0.0.1:9", **server: object) -> Any:  # noqa: ANN401
    return settings_for(url, server=SERVER | server, tenant=TENANTS)


async def sign_in(gateway: Gateway, key: str = KEY, *headers: bytes) -> WholeResponse:
    return await fetch(gateway.url, "POST", SESSION, *headers, json={"key": key})


async def cookie_of(gateway: Gateway) -> bytes:
    """Sign in and return the cookie header that a browser sends from then on."""
    said = (await sign_in(gateway)).header(b"set-cookie")
    assert said is not None
    return b"cookie: theme=dark; " + said.partition(b";")[0]


async def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        answer = await sign_in(gateway, KEY, ORIGIN)
    assert (answer.status, answer.json) == (200, {"signed_in": True})
    assert answer.header(b"cache-control") == b"no-store"
    name, *attributes = (answer.header(b"set-cookie") or b"").split(b"; ")
    assert attributes == [b"Path=/admin", b"Max-Age=43200", b"HttpOnly", b"SameSite=Strict"]
    assert len(name.partition(b"=")[2]) == 43
    assert KEY.encode() not in name


async def test_behind_a_tls_proxy_the_cookie_is_secure() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        answer = await sign_in(gateway, KEY, b"x-forwarded-proto: https")
    assert (answer.header(b"set-cookie") or b"").endswith(b"; Secure")


def test_under_tls_the_cookie_is_secure() -> None:
    operators = Operators(lambda _: True, lambda: 0.0)
    cookies = [
        operators.sign_in({"scheme": scheme, "headers": [], "server": ("h", 443)}, b"key")
        for scheme in ("http", "https")
    ]
    assert [cookie.endswith(b"; Secure") for cookie in cookies] == [False, True]


async def test_sessions_of_two_gateways_on_one_host_do_not_conflict() -> None:
    async with (
        running_gateway(settings(), ready=False) as one,
        running_gateway(settings(), ready=False) as two,
    ):
        cookies = b"; ".join([(await cookie_of(gateway))[8:] for gateway in (one, two)])
        for gateway in (one, two):
            answer = await fetch(gateway.url, "GET", "/admin/status", b"cookie: " + cookies)
            assert answer.status == 200


async def test_without_tenants_the_pages_work_only_under_the_names_of_this_machine() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        cookie = await cookie_of(gateway)
        assert (await fetch(gateway.url, "GET", "/admin/chat")).status == 200
        place, body = "/admin/chat/completions", chat(stream=False)
        assert (await fetch(gateway.url, "POST", place, cookie, ORIGIN, json=body)).status == 200
        rebound = b"GET /admin HTTP/1.1\r\nhost: evil.test\r\n\r\n"
        assert (await exchange(gateway.url, rebound)).error["code"] == "host_not_allowed"


async def test_the_cookie_opens_the_operators_endpoints_and_no_others() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings(fu.url)) as gateway:
        cookie = await cookie_of(gateway)
        for path in ("/admin/status", "/admin/requests", "/metrics"):
            assert (await fetch(gateway.url, "GET", path, cookie)).status == 200
        public = await fetch(gateway.url, "POST", CHAT, cookie, ORIGIN, json=chat())
        assert (public.status, public.error["code"]) == (401, "invalid_api_key")
        assert fu.generations == []


async def test_the_cookie_allows_actions_only_from_the_gateways_own_pages() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings(fu.url)) as gateway:
        cookie = await cookie_of(gateway)
        drain, resume = "/admin/backends/gpu0/drain", "/admin/backends/gpu0/resume"
        for origin in (
            b"http://evil.test",
            b"http://127.0.0.1:81",
            b"null",
            b"",
            b"http://127.0.0.1.evil.test",
        ):
            refused = await fetch(gateway.url, "POST", drain, cookie, b"origin: " + origin)
            assert (refused.status, refused.error["code"]) == (403, "origin_not_allowed"), origin
        without = await fetch(gateway.url, "POST", drain, cookie)
        assert (without.status, without.error["code"]) == (403, "origin_not_allowed")
        backend = gateway.fleet.backends["gpu0"]
        assert backend.state is BackendState.READY
        ordered = await fetch(gateway.url, "POST", drain, cookie, ORIGIN)
        assert (ordered.status, ordered.json["state"]) == (200, "draining")
        assert (await fetch(gateway.url, "POST", resume, cookie, ORIGIN)).status == 200


async def test_a_read_with_the_cookie_from_another_origin_is_refused() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        answer = await fetch(gateway.url, "GET", "/admin/status", cookie, b"origin: http://evil.test")
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")


async def test_a_bearer_key_needs_no_origin() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings(fu.url)) as gateway:
        answer = await fetch(gateway.url, "POST", "/admin/backends/gpu0/drain", BEARER)
    assert answer.status == 200


async def test_a_wrong_key_with_a_valid_cookie_is_refused() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        answer = await fetch(gateway.url, "GET", "/admin/status", cookie, b"authorization: Bearer sg-no")
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


async def test_signing_out_ends_the_session_and_not_only_the_cookie() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        other = await cookie_of(gateway)
        elsewhere = await fetch(gateway.url, "DELETE", SESSION, cookie, b"origin: http://evil.test")
        assert elsewhere.status == 403
        assert (await fetch(gateway.url, "GET", SESSION, cookie)).json == {"signed_in": True}
        answer = await fetch(gateway.url, "DELETE", SESSION, cookie, ORIGIN)
        assert b"Max-Age=0" in (answer.header(b"set-cookie") or b"")
        assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 401
        assert (await fetch(gateway.url, "GET", SESSION, cookie)).json == {"signed_in": False}
        assert (await fetch(gateway.url, "GET", "/admin/status", other)).status == 200


@pytest.mark.slow
async def test_an_event_stream_ends_with_its_session() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings(fu.url)) as gateway, await gateway.client() as viewer:
        cookie = await cookie_of(gateway)
        await viewer.request("GET", "/admin/events", cookie)
        frames = viewer.frames()
        assert (await anext(frames)).data.startswith(b"data: {")
        await fetch(gateway.url, "DELETE", SESSION, cookie, ORIGIN)
        for _ in range(2):
            if await anext(frames, None) is None:
                break
        assert viewer.clean_end, "the stream goes on"


async def test_neither_the_key_nor_the_session_is_in_the_log() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        await sign_in(gateway, "sg-wrong-one")
        await fetch(gateway.url, "GET", "/admin/status", cookie)
        session_id = cookie.rpartition(b"=")[2].decode()
        assert "/admin/session" in gateway.log.text
        assert [text for text in (KEY, "sg-wrong-one", session_id) if text in gateway.log.text] == []


async def test_a_reload_without_the_key_ends_its_sessions() -> None:
    fu = ScriptedUpstream()
    async with fu:
        file = Configuration(settings(fu.url))
        async with running_gateway(settings(fu.url), load=file.load) as gateway:
            cookie = await cookie_of(gateway)
            await gateway.app.reload()
            assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 200
            file.settings = settings(fu.url, operator_key_hashes=[hash_key("sg-another")])
            await gateway.app.reload()
            assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 401
            file.settings = settings(fu.url)
            await gateway.app.reload()
            assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 401


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"sg-operator"', b'{"key":1}', b'{"key":["sg-operator"]}', b"{}"]
)
async def test_a_sign_in_that_cannot_be_read_is_400(body: bytes) -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        answer = await fetch(gateway.url, "POST", SESSION, b"content-type: application/json", body=body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


async def test_a_sign_in_from_a_page_of_another_origin_is_refused() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        answer = await sign_in(gateway, KEY, b"origin: http://evil.test")
    assert (answer.status, answer.header(b"set-cookie")) == (403, None)


async def test_after_several_wrong_keys_even_the_right_one_is_refused() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        for _ in range(A_MINUTE):
            wrong = await sign_in(gateway, "sg-wrong")
            assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")
            assert wrong.header(b"set-cookie") is None
        refused = await sign_in(gateway)
        assert (refused.status, refused.error["code"]) == (429, "rate_limited")
        assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 200
        assert (await fetch(gateway.url, "GET", "/admin/status", BEARER)).status == 200


async def test_a_cookie_set_by_another_server_on_this_host_does_not_hide_the_session() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        cookie = await cookie_of(gateway)
        name = cookie.split(b"; ")[1].partition(b"=")[0]
        planted = b"cookie: %b=planted; %b" % (name, cookie[8:])
        assert (await fetch(gateway.url, "GET", "/admin/status", planted)).status == 200
        assert (await fetch(gateway.url, "DELETE", SESSION, planted, ORIGIN)).status == 200
        assert (await fetch(gateway.url, "GET", "/admin/status", cookie)).status == 401


async def test_signing_in_again_ends_the_previous_session() -> None:
    async with running_gateway(settings(), ready=False) as gateway:
        before = await cookie_of(gateway)
        assert (await sign_in(gateway, KEY, before, ORIGIN)).status == 200
        assert (await fetch(gateway.url, "GET", "/admin/status", before)).status == 401


async def test_without_an_operator_key_the_operators_paths_do_not_exist() -> None:
    fu = ScriptedUpstream()
    paths = ("/", "/admin", "/admin/chat", "/admin/static/look.css", "/admin/events", "/admin/status")
    async with fu, running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
        for path in paths:
            assert (await fetch(gateway.url, "GET", path)).status == 404, path
        for method in ("GET", "POST", "DELETE"):
            for path in (SESSION, *paths):
                assert (await fetch(gateway.url, method, path, ORIGIN, BEARER)).status == 404, (method, path)


async def test_the_playground_path_accepts_the_cookie_only_from_the_gateways_own_pages() -> None:
    fu = ScriptedUpstream()
    place = "/admin/chat/completions"
    async with fu, running_gateway(settings(fu.url)) as gateway:
        cookie = await cookie_of(gateway)
        body = chat(stream=False)
        elsewhere = await fetch(gateway.url, "POST", place, cookie, b"origin: http://evil.test", json=body)
        assert (elsewhere.status, fu.generations) == (403, [])
        assert (await fetch(gateway.url, "POST", place, b"x-api-key: sg-a", json=body)).status == 401
        answer = await fetch(gateway.url, "POST", place, cookie, ORIGIN, json=body)
        assert answer.status == 200
        [entry] = gateway.parts.history.newest(0.0)
    assert (entry["tenant"], entry["model"], entry["outcome"]) == ("operator", "m", "ok")
    assert b"cookie" not in fu.generations[0].raw.lower()
