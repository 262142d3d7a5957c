"""A large chunk passes as it came, but for its identity; the condensed copy says what it means."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.large_chunk import MAX_CONDENSED_BYTES, LargeChunk

IDENTITY = {b"id": b'"ours"', b"model": b'"public"', b"created": b"7"}
LONG = "x" * 5000
CHUNK: dict[str, Any] = {
    "id": "theirs",
    "created": 1,
    "model": "/models/secret.gguf",
    "choices": [
        {
            "index": 0,
            "delta": {"content": LONG + '"\\\n\u20ac', "model": "kept"},
            "logprobs": {"content": [{"token": "a", "top": [1, [2]]}] * 500},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "details": {"cached_tokens": 3}},
}


def passed(document: bytes, size: int, members: dict[bytes, bytes] = IDENTITY) -> tuple[bytes, LargeChunk]:
    chunk = LargeChunk(members)
    return b"".join(chunk.feed(document[at : at + size]) for at in range(0, len(document), size)), chunk


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000_000])
@pytest.mark.parametrize("indent", [None, orjson.OPT_INDENT_2])
def test_only_the_identity_is_replaced_however_the_bytes_are_cut(size: int, indent: int | None) -> None:
    got, chunk = passed(orjson.dumps(CHUNK, option=indent), size)
    assert orjson.loads(got) == CHUNK | {"id": "ours", "created": 7, "model": "public"}
    condensed = chunk.finish()
    assert condensed is not None
    assert condensed["usage"] == CHUNK["usage"]
    [choice] = condensed["choices"]
    assert (choice["finish_reason"], choice["delta"]["content"]) == ("stop", "...")
    assert choice["logprobs"] == {"content": []}


def test_identities_inside_a_response_or_a_message_are_replaced_and_no_others() -> None:
    inner = {"model": "/m", "output": [{"model": "kept"}]}
    document = {"response": inner, "other": {"model": "kept"}, "model": {"a": [1, {"b": "}"}]}}
    got, _ = passed(orjson.dumps(document), 5)
    assert orjson.loads(got) == {
        "response": inner | {"model": "public"},
        "other": {"model": "kept"},
        "model": "public",
    }


def test_the_condensed_copy_is_small_whatever_the_chunk_holds() -> None:
    for value in ([1] * 20_000, {str(n): n for n in range(20_000)}, "[" * 20_000, ['"\\' * 9] * 5000):
        document = orjson.dumps({"a": value, "stop": True})
        got, chunk = passed(document, 65536)
        assert got == document
        assert len(chunk._condensed) < 20_000
        condensed = chunk.finish()
        assert condensed is not None
        assert condensed["stop"] is True


@pytest.mark.parametrize(
    "rest",
    [b"[" * 200_000, b'{"a":' * 50_000, b'["]",[1,{"b":[2]}],' * 20_000, b'["' + b'\\"' * 100_000],
    ids=["brackets", "objects", "mixed", "a string"],
)
def test_nothing_is_kept_of_a_part_that_is_left_out(rest: bytes) -> None:
    chunk = LargeChunk({})
    event = b'{"a":[[[[[' + rest
    passed = b"".join(chunk.feed(event[at : at + 4096]) for at in range(0, len(event), 4096))
    assert event.startswith(passed)
    assert len(event) - len(passed) <= 1, "a backslash waits for the next piece"
    assert len(chunk._containers) < 10
    assert len(chunk._condensed) < 2000


def test_the_chunk_goes_on_behind_a_part_that_is_left_out() -> None:
    deep = b'[[[[[[1,"]"],{"b":"}"},[[2]]],3]]]]'
    for size in range(1, 40):
        event = b'{"model":"theirs","a":%b,"usage":{"total":7},"id":"x"}' % deep
        chunk = LargeChunk({b"model": b'"ours"', b"id": b'"y"'})
        passed = b"".join(chunk.feed(event[at : at + size]) for at in range(0, len(event), size))
        assert passed == event.replace(b'"theirs"', b'"ours"').replace(b'"x"', b'"y"')
        condensed = chunk.finish()
        assert condensed is not None
        assert condensed["usage"] == {"total": 7}


def test_an_event_that_is_no_object_passes_and_is_not_read() -> None:
    for text in (
        b"[1,2",
        b"}}}",
        b'"\\',
        b"]" * 100,
        b'{"a":"' + b"x" * 1000,
        b"[" * 2 * MAX_CONDENSED_BYTES,
    ):
        got, chunk = passed(text, 1000)
        assert text.startswith(got)
        assert len(text) - len(got) <= 1
        assert chunk.finish() is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.integers(1, 30))
def test_any_object_passes_unchanged_without_an_identity(document: dict[str, Any], size: int) -> None:
    text = orjson.dumps(document)
    got, chunk = passed(text, size, {})
    assert got == text
    assert chunk.finish() is not None
