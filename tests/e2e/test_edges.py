"""HTTP at its edges, on every route: methods, paths, framing, upgrades, names of any script."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from slotgate.gateway.app.application import OPERATOR_PREFIXES, routes
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.http.by_method import ByMethod
from slotgate.gateway.settings import Settings
from tests.support.answer import WholeResponse, exchange, fetch
from tests.support.client import request_bytes
from tests.support.endpoints import BOUNDARY, MODEL, STREAMING, WAYS, Way, chunks_of, models_in
from tests.support.gateway import running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import END, answer, chunked
from tests.support.script import Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

OPERATOR, TENANT = b"sg-operator", b"sg-tenant"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS")
SHOWN = {
    "port": 0,
    "expose_props": True,
    "expose_slots": True,
    "operator_key_hashes": [hash_key(OPERATOR)],
}
PARAMETERS = {"{id}": "an-id", "{id:path}": "m", "{name}": "icon.svg"}


def shown_settings(url: str) -> Settings:
    """Return settings that switch on everything that can be served."""
    tenant = {"name": "t", "key_hashes": [hash_key(TENANT)]}
    return settings_for(url, server=SHOWN, tenant=[tenant])


async def all_routes() -> list[Route]:
    settings = shown_settings("http://127.0.0.1:9")
    parts = Composition(settings, {})
    try:
        return routes(settings, parts, Identities(lambda _: None, lambda _: True))
    finally:
        await parts.stop()


@dataclass(frozen=True, slots=True)
class Place:
    """A route as a client asks for it."""

    path: str
    allow: frozenset[str]

    def __repr__(self) -> str:
        return self.path

    @property
    def key(self) -> bytes:
        return b"authorization: Bearer " + (OPERATOR if self.path.startswith(OPERATOR_PREFIXES) else TENANT)


def _place(route: Route) -> Place:
    path = route.path
    for parameter, value in PARAMETERS.items():
        path = path.replace(parameter, value)
    assert "{" not in path, "a parameter that these tests do not know"
    assert isinstance(route.endpoint, ByMethod)
    return Place(path, frozenset(route.endpoint.allow.decode().split(", ")))


PLACES = [_place(route) for route in asyncio.run(all_routes())]
EVERYWHERE = pytest.mark.parametrize("place", PLACES, ids=repr)
WITH_AN_END = pytest.mark.parametrize("place", [p for p in PLACES if p.path != "/admin/events"], ids=repr)
NO_KEY_NEEDED = {
    **{("GET", path): 200 for path in ("/health", "/v1/health", "/ready", "/admin", "/admin/chat")},
    ("GET", "/"): 307,
    ("GET", "/admin/static/icon.svg"): 200,
    ("GET", "/admin/session"): 200,
    ("POST", "/admin/session"): 400,
    ("DELETE", "/admin/session"): 403,
}
"""Endpoints that answer nevertheless -> the status of their answer to an empty request."""
AT_EVERY_ENDPOINT = pytest.mark.parametrize("way", WAYS, ids=repr)


def whole(way: Way) -> ScriptedUpstream:
    script: Script = [Write(answer(200, way.sample.whole))]
    return ScriptedUpstream(scripts={way.upstream: script}, llama=LlamaLike(model=MODEL))


def test_every_endpoint_is_among_the_routes() -> None:
    assert {way.path for way in WAYS} <= {place.path for place in PLACES}


# -- methods and paths


@WITH_AN_END
async def test_a_route_says_which_methods_it_has_and_has_no_others(place: Place) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(shown_settings(fu.url)) as gateway:
        for method in METHODS:
            headers = (place.key, b"content-type: application/json", b"origin: http://127.0.0.1")
            got = await fetch(gateway.url, method, place.path, *headers)
            if method not in place.allow:
                assert got.status == 405
                assert set((got.header(b"allow") or b"").decode().split(", ")) == place.allow
                if method != "HEAD":
                    assert got.json["error"]["type"] == "invalid_request_error"
            elif method == "OPTIONS":
                assert (got.status, got.body) == (200, b"")
                assert set((got.header(b"allow") or b"").decode().split(", ")) == place.allow
            else:
                assert got.status in (200, 307, 400, 404, 409), (method, got)
        assert fu.generations == []


@WITH_AN_END
async def test_head_is_get_without_the_body(place: Place) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(shown_settings(fu.url)) as gateway, await gateway.client() as client:
        await client.send(request_bytes("HEAD", place.path, place.key, b"connection: close"))
        head = await client.head()
        assert await client.eof()
        got = await fetch(gateway.url, "GET", place.path, place.key)
    assert head.start_line == got.head.start_line
    assert {name for name, _ in head.headers} - {b"connection"} == {name for name, _ in got.head.headers}


@EVERYWHERE
async def test_scenario_096_a_trailing_slash_is_404_in_json_and_no_redirect(place: Place) -> None:
    fu = ScriptedUpstream()
    proxied = (b"x-forwarded-proto: https", b"x-forwarded-host: internal")
    async with fu, running_gateway(shown_settings(fu.url)) as gateway:
        for method in ("GET", "POST"):
            got = await fetch(gateway.url, method, f"{place.path}/", place.key, *proxied)
            assert got.status in (404, 405), got
            assert got.header(b"location") is None
            assert "message" in got.json["error"]


@EVERYWHERE
async def test_without_a_key_only_health_and_the_way_in_are_shown(place: Place) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(shown_settings(fu.url)) as gateway:
        for method in sorted(place.allow - {"HEAD", "OPTIONS"}):
            got = await fetch(gateway.url, method, place.path)
            assert got.status == NO_KEY_NEEDED.get((method, place.path), 401)


@EVERYWHERE
async def test_scenario_102_a_websocket_is_refused_on_every_route(place: Place) -> None:
    upgrade = (
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    )
    fu = ScriptedUpstream()
    async with fu, running_gateway(shown_settings(fu.url)) as gateway:
        got = await fetch(gateway.url, "GET", place.path, place.key, *upgrade)
        assert fu.generations == []
    assert (got.status, got.error["code"]) == (404, "unknown_path")


@EVERYWHERE
async def test_scenario_091_headers_that_are_too_large_are_431_on_every_route(place: Place) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(shown_settings(fu.url)) as gateway:
        method = min(place.allow - {"HEAD", "OPTIONS"})
        got = await fetch(gateway.url, method, place.path, place.key, b"x-big: " + b"x" * 70_000)
        assert fu.generations == []
    assert (got.status, got.error["code"]) == (431, "headers_too_large")


# -- bodies


@AT_EVERY_ENDPOINT
async def test_a_chunked_body_is_read_to_its_end_and_forwarded_with_a_length(way: Way) -> None:
    body, kind = way.body(text_of_some_length="x" * 1000)
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", way.path, *kind, b"transfer-encoding: chunked"))
        for at in range(0, len(body), 100):
            await client.send(chunked(body[at : at + 100]))
        await client.send(END)
        await client.head()
        assert client.status == 200, await client.body()
        [request] = fu.generations
    assert request.body == body
    assert request.head.get(b"transfer-encoding") is None
    assert request.head.get(b"content-length") == b"%d" % len(body)


@AT_EVERY_ENDPOINT
async def test_a_client_that_expects_100_continue_gets_it_and_is_served(way: Way) -> None:
    body, kind = way.body()
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        request = request_bytes("POST", way.path, *kind, b"expect: 100-continue", body=body)
        await client.send(request[: -len(body)])
        await client.head()
        assert client.status == 100
        assert fu.generations == []
        await client.send(body)
        await client.head()
        assert client.status == 200
        assert fu.generations[0].head.get(b"expect") is None


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"deflate, gzip", b"x"])
@AT_EVERY_ENDPOINT
async def test_a_compressed_body_is_415_and_the_answer_names_the_accepted_encoding(
    way: Way, encoding: bytes
) -> None:
    body, kind = way.body()
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        request = request_bytes(
            "POST", way.path, *kind, b"content-encoding: " + encoding, body=gzip.compress(body)
        )
        got = await exchange(gateway.url, request)
        assert fu.generations == []
    assert (got.status, got.header(b"accept-encoding")) == (415, b"identity")
    assert got.header(b"x-slotgate-reason") == b"unsupported_content_encoding"


@pytest.mark.parametrize("encoding", [b"identity", b"", b" Identity "])
async def test_a_body_that_declares_no_compression_is_served(encoding: bytes) -> None:
    way = STREAMING[0]
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await way.ask(gateway.url, b"content-encoding:" + encoding)).status == 200


NO_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "half a surrogate": b'{"content": "\\ud83d", "model": 5}',
    "no UTF-8": b'{"content": "\xff"}',
}


@pytest.mark.parametrize("body", NO_BODIES)
@AT_EVERY_ENDPOINT
async def test_scenario_087_a_body_that_makes_no_sense_is_400_at_every_endpoint(way: Way, body: str) -> None:
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        _, kind = way.body()
        got = await exchange(gateway.url, request_bytes("POST", way.path, *kind, body=NO_BODIES[body]))
        assert fu.generations == []
    assert got.status == 400
    assert got.json["error"]["type"] == "invalid_request_error"


# -- names

NAMES = ["org/model-7b:q4", "模型/七", "modèle", "e\u0301", "मॉडल", "a+b@c"]


def named_settings(url: str, name: str, alias: str = "other") -> Settings:
    backend = {"name": "gpu0", "url": url, "models": [name], "health_interval_s": 0.2}
    model = {"name": name, "aliases": [alias], "upstream_name": "/srv/own.gguf"}
    return settings_for(backend=[backend], model=[model])


def in_path(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("name", NAMES)
async def test_a_model_is_found_by_a_name_of_any_script_and_shown_under_it(name: str) -> None:
    way = STREAMING[0]
    fu = whole(way)
    async with fu, running_gateway(named_settings(fu.url, name, f"{name}/alias")) as gateway:
        for asked in (name, f"{name}/alias"):
            got = await way.ask(gateway.url, model=asked)
            assert (got.status, models_in(got.json)) == (200, {asked})
            for path in (f"/v1/models/{in_path(asked)}", f"/v1/models/{quote(asked, safe='/:@+')}"):
                one = await fetch(gateway.url, "GET", path)
                assert (one.status, one.json["id"]) == (200, asked)
        listed = await fetch(gateway.url, "GET", "/v1/models")
        assert {entry["id"] for entry in listed.json["data"]} == {name, f"{name}/alias"}
        assert gateway.log.of("request")[0]["model"] == name


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_not_here_is_repeated_in_the_error(name: str) -> None:
    way = STREAMING[0]
    fu = whole(way)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        answers: list[WholeResponse] = [
            await way.ask(gateway.url, model=name),
            await fetch(gateway.url, "GET", f"/v1/models/{in_path(name)}"),
        ]
    for got in answers:
        assert (got.status, got.error["code"], got.error["param"]) == (404, "model_not_found", "model")
        assert name in got.error["message"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", STREAMING, ids=repr)
async def test_streams_and_their_errors_carry_a_name_of_any_script(way: Way, name: str) -> None:
    error = way.error_event(500, "cannot read /srv/own.gguf", "server_error")
    scripts: Any = iter([way.script(), [Write(b"".join(_cut_by(way, error)))]])
    fu = ScriptedUpstream(scripts={way.upstream: lambda _: next(scripts)}, llama=LlamaLike(model=MODEL))
    async with fu, running_gateway(named_settings(fu.url, name)) as gateway:
        chunks = chunks_of(await way.frames(gateway.url, model=name))
        failed = await way.frames(gateway.url, model=name)
        assert way.members_of(fu.generations[0].body)["model"].endswith("/srv/own.gguf")
    assert models_in(chunks) <= {name}
    assert way.error(failed)["message"] == f"cannot read {name}"


def _cut_by(way: Way, error: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, way.head(), chunked(error), END]


@pytest.mark.parametrize("path", ["%2e%2e", "..%2fm", "%00", "m%2f", "%ff", "m?x=1#y", "%25", "m%0d%0ax:1"])
async def test_an_id_that_is_odd_is_looked_up_and_nothing_else(path: str) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await fetch(gateway.url, "GET", f"/v1/models/{path}")
    found = path.startswith("m?")
    assert got.status == (200 if found else 404)
    assert got.json["id"] == "m" if found else got.error["code"] in ("model_not_found", "unknown_path")


def test_the_forms_have_the_boundary_that_their_header_says() -> None:
    forms = [way for way in WAYS if way.endpoint.multipart]
    assert all(BOUNDARY in way.body()[0] for way in forms)
