"""A JSON text that would take long to parse is refused before it is parsed."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from slotgate.gateway.api.json_bodies import JsonBodyCodec
from slotgate.gateway.api.json_extent import (
    MAX_CONTAINERS,
    MAX_NAMES,
    MAX_VALUES,
    is_within_bounds,
    may_be_beyond_bounds,
)
from slotgate.gateway.http.errors import ClientError

BRACKETS = b"[{," * 1_200_000

REFUSED = {
    "empty arrays": b'{"a":[' + b"[]," * 10_000_000 + b"0]}",
    "empty objects": b'{"a":[' + b"{}," * MAX_CONTAINERS + b"0]}",
    "numbers": b'{"a":[' + b"1," * (MAX_VALUES + 1) + b"0]}",
    "strings": b'{"a":[' + b'"",' * (MAX_VALUES + 1) + b"0]}",
    "names": b"{%b}" % b",".join(b'"k%d":1' % number for number in range(MAX_NAMES + 1)),
    "nesting": b'{"a":' + b"[" * 4_000_000,
    "a string that does not end": b'{"a":[' + b"[]," * MAX_CONTAINERS + b'0,"',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_too_many_values_are_refused_before_parsing(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> None:
        pytest.fail("it was parsed")

    monkeypatch.setattr(orjson, "loads", fail)
    assert any(may_be_beyond_bounds(text))
    with pytest.raises(ClientError, match="more than 100000 objects and arrays") as refused:
        asyncio.run(JsonBodyCodec().parse(text))
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "value",
    [BRACKETS.decode(), 'a quote \\" and "' + BRACKETS.decode(), ["x"] * 90_000, list(range(450_000))],
    ids=["a prompt of brackets", "a prompt with quotes", "many texts", "tokens"],
)
def test_values_within_the_bounds_pass(value: object) -> None:
    text = orjson.dumps({"a": value, "more": ["x" * 1_100_000]})
    assert is_within_bounds(text)
    assert asyncio.run(JsonBodyCodec().parse(text))["a"] == value
