"""A chat request: wrong members are named, some members are set, and the others pass unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.api.json_bodies import BIG_BODY_BYTES, JsonBodyCodec
from slotgate.gateway.api.json_splice import splice
from slotgate.gateway.api.request import AddedOptions, RequestParameters
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import ClientError

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")
TENANT = TenantIdentity("team-a")


def request(**members: object) -> RequestParameters:
    return RequestParameters.from_members({"messages": MESSAGES, **members}, CHAT.body_format)


def changed(members: Json, tenant: TenantIdentity = TENANT, model: str | None = None, **added: bool) -> Json:
    """Return the members that are set, with None for those that are left out."""
    parsed = {"messages": MESSAGES, **members}
    changes = RequestParameters.from_members(parsed, CHAT.body_format).changes(
        parsed, tenant, model, AddedOptions(**added)
    )
    return {name: None if value is None else orjson.loads(value) for name, value in changes.items()}


def limited(default: int | None = None, limit: int | None = None) -> TenantIdentity:
    return TenantIdentity("team-a", max_tokens_default=default, max_tokens_limit=limit)


# Wrong members are named


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [*MESSAGES, "hi"]}, "messages[1]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": 1}]}, "messages[0]"),
        ({"model": 1}, "model"),
        ({"model": ["m"]}, "model"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"continuous_usage_stats": "yes"}}, "stream_options.continuous_usage_stats"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 2, "n_cmpl": 0}, "n_cmpl"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": False}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": [5]}, "max_tokens"),
        ({"max_completion_tokens": {}}, "max_completion_tokens"),
        ({"n_predict": "5"}, "n_predict"),
    ],
)
def test_an_error_names_the_wrong_member(members: Json, param: str) -> None:
    with pytest.raises(ClientError) as refused:
        request(**members)
    assert (400, "invalid_request", param) == (refused.value.status, refused.value.code, refused.value.param)
    assert param in refused.value.message


def test_missing_and_null_members_have_their_defaults() -> None:
    names = ["model", "stream", "n", "max_tokens", "max_completion_tokens", "n_predict", "stream_options"]
    plain = RequestParameters(
        format=CHAT.body_format,
        pieces=1,
        model=None,
        stream=False,
        n=1,
        max_tokens=None,
        limit_name="max_tokens",
        include_usage=False,
        running_usage=False,
        timings_per_token=False,
    )
    assert plain == request() == request(**dict.fromkeys(names))
    assert plain == request(stream_options={"include_usage": None, "continuous_usage_stats": None})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "n_predict": -1}, "n_predict"),
        ({"max_tokens": 5, "n_predict": None}, "max_tokens"),
    ],
)
def test_the_limit_name_is_the_one_that_llama_server_reads_first(given: Json, name: str) -> None:
    assert request(**given).limit_name == name


def test_given_members_are_read() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert RequestParameters(
        format=CHAT.body_format,
        pieces=1,
        model="m",
        stream=True,
        n=2,
        max_tokens=7,
        limit_name="max_tokens",
        include_usage=True,
        running_usage=True,
        timings_per_token=True,
    ) == request(model="m", stream=True, n=2, max_tokens=7, stream_options=options, timings_per_token=True)


def test_n_cmpl_counts_as_n() -> None:
    assert (request(n_cmpl=3).n, request(n=1, n_cmpl=3).n, request(n=2, n_cmpl=None).n) == (3, 3, 2)


def test_a_whole_number_may_have_a_decimal_point() -> None:
    assert (request(n=2.0).n, request(max_tokens=5.0).max_tokens) == (2, 5)


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 5, "max_completion_tokens": 9, "n_predict": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": -1}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_the_limit_is_the_one_that_llama_server_reads(members: Json, limit: int | None) -> None:
    assert limit == request(**members).max_tokens


# Members that are set before the backend gets the body


def test_a_request_is_not_changed_without_need() -> None:
    anything = {"model": "m", "max_tokens": 5, "temperature": 0.5, "foo": {"id_slot": 1}}
    assert changed(anything) == {}
    assert changed(anything, model="m") == {}


def test_the_model_becomes_the_backends_own_name() -> None:
    assert changed({"model": "ours"}, model="theirs") == {"model": "theirs"}
    assert changed({}, model="theirs") == {"model": "theirs"}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
@pytest.mark.parametrize(
    ("tenant", "given", "sent"),
    [
        (limited(), None, None),
        (limited(), 5, 5),
        (limited(), -1, -1),
        (limited(default=100), None, 100),
        (limited(default=100), -1, 100),
        (limited(default=100), 5, 5),
        (limited(default=100), 500, 500),
        (limited(limit=200), None, 200),
        (limited(limit=200), -1, 200),
        (limited(limit=200), 0, 0),
        (limited(limit=200), 200, 200),
        (limited(limit=200), 201, 200),
        (limited(limit=200), 1e29, 200),
        (limited(default=100, limit=200), None, 100),
        (limited(default=100, limit=200), -2, 100),
        (limited(default=100, limit=200), 150, 150),
        (limited(default=300, limit=200), None, 200),
        (limited(default=300, limit=200), 300, 200),
    ],
)
def test_token_limits_of_the_tenant_hold(
    name: str, tenant: TenantIdentity, given: int | None, sent: int | None
) -> None:
    members = {} if given is None else {name: given}
    name = "max_tokens" if given is None else name
    assert sent == ({**members, **changed(members, tenant)}).get(name)


def test_no_other_limit_name_evades_the_tenants_limit() -> None:
    members = {"max_tokens": 5, "max_completion_tokens": -1, "n_predict": 999}
    assert changed(members, limited(100, 200)) == {"max_completion_tokens": 100, "n_predict": 200}


def test_only_allowed_tenants_can_pin_a_slot() -> None:
    assert changed({"id_slot": 1}) == {"id_slot": None}
    assert changed({"id_slot": None}) == {"id_slot": None}
    assert changed({"id_slot": 1}, TenantIdentity("team-a", allow_id_slot=True)) == {}


def test_added_options_keep_the_clients_options() -> None:
    assert changed({}, usage=True, timings=True) == {
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
    }
    assert changed({"stream_options": {"foo": 1, "include_usage": False}}, usage=True) == {
        "stream_options": {"foo": 1, "include_usage": True}
    }
    assert changed({"stream_options": None}, usage=True) == {"stream_options": {"include_usage": True}}


def test_options_nested_too_deeply_are_the_clients_error() -> None:
    nested: list[Any] = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(ClientError) as raised:
        changed({"stream_options": {"foo": nested}}, usage=True)
    assert raised.value.param == "stream_options"


def test_the_cost_is_the_prompt_and_the_output_limit() -> None:
    assert request(max_tokens=50).cost(100, TENANT) == 100 + 50
    assert request(max_tokens=50, n=3).cost(100, TENANT) == 100 + 3 * 50
    assert 100 + 256 == request().cost(100, TENANT) == request(max_tokens=-1).cost(100, TENANT)
    assert request(max_tokens=1e308, n=100).cost(100, TENANT) == 100 + 2**31 - 1
    assert request(max_tokens=50).cost(100, limited(limit=10)) == 100 + 10
    assert request().cost(100, limited(default=20)) == 100 + 20


# Bodies


def parse(body: bytes) -> Json:
    return asyncio.run(JsonBodyCodec().parse(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1}x',
        b'{"a":1}{"a":1}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        '{"a":"안"}'.encode("euc-kr"),
        b'{"a":"x \\ud83d"}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":"\n"}',
        b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a":1}' + b" " * BIG_BODY_BYTES + b"x",
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        parse(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"{}"', b"1", b"[" + b" " * BIG_BODY_BYTES + b"]"])
def test_json_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        parse(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


def test_the_last_of_duplicate_members_counts() -> None:
    assert parse(b'{"a":1,"a":2}') == {"a": 2}


def test_big_bodies_are_parsed_and_spliced_like_small_ones() -> None:
    async def main() -> None:
        bodies = JsonBodyCodec()
        for size in (10, BIG_BODY_BYTES):
            body = b'{"a":"%s","n":1.10}' % (b"x" * size)
            assert "x" * size == (await bodies.parse(body))["a"]
            assert splice(body, {"a": b"1"}) == await bodies.splice(body, {"a": b"1"}) == b'{"a":1,"n":1.10}'

    asyncio.run(main())
