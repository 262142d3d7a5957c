"""The headers that slotgate defines for its clients: the effect of each value, and of odd ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from starlette.types import Scope

from slotgate.gateway.api.request_options import MAX_KEY_BYTES, RequestOptions
from slotgate.gateway.http.context import headers_of


def options_of(*headers: tuple[bytes, bytes]) -> RequestOptions:
    scope: Scope = {"type": "http", "headers": list(headers)}
    return RequestOptions.from_headers(headers_of(scope))


def changed(options: RequestOptions) -> dict[str, Any]:
    """Return the options that differ from the defaults."""
    default = RequestOptions()
    names = (field.name for field in dataclasses.fields(RequestOptions))
    return {
        name: getattr(options, name) for name in names if getattr(options, name) != getattr(default, name)
    }


TABLE: dict[str, tuple[bytes, bytes, dict[str, Any]]] = {
    "batch": (b"x-slotgate-priority", b"batch", {"batch": True}),
    "batch in capitals": (b"x-slotgate-priority", b" BATCH ", {"batch": True}),
    "interactive": (b"x-slotgate-priority", b"interactive", {}),
    "unknown priority": (b"x-slotgate-priority", b"urgent", {}),
    "batch and more": (b"x-slotgate-priority", b"batch, interactive", {}),
    "empty priority": (b"x-slotgate-priority", b"", {}),
    "priority that is not UTF-8": (b"x-slotgate-priority", b"\xff\xfe", {}),
    "session": (b"x-slotgate-session", b"s1", {"session": b"s1"}),
    "session of other clients": (b"x-session-id", b"s1", {"session": b"s1"}),
    "session of Claude Code": (b"x-claude-code-session-id", b"s1", {"session": b"s1"}),
    "session in capitals": (b"x-slotgate-session", b"S1", {"session": b"S1"}),
    "session that is not UTF-8": (b"x-slotgate-session", b"\xff\x00", {"session": b"\xff\x00"}),
    "long session": (b"x-slotgate-session", b"s" * 9000, {"session": b"s" * MAX_KEY_BYTES}),
    "empty session": (b"x-slotgate-session", b"", {}),
    "comments": (b"x-slotgate-keepalive", b"comment", {"keepalive": "comment"}),
    "chunks": (b"x-slotgate-keepalive", b"chunk", {"keepalive": "chunk"}),
    "no keep-alives": (b"x-slotgate-keepalive", b"\toff ", {"keepalive": "off"}),
    "keep-alives in capitals": (b"x-slotgate-keepalive", b"Chunk", {"keepalive": "chunk"}),
    "unknown keep-alives": (b"x-slotgate-keepalive", b"chunks", {}),
    "empty keep-alives": (b"x-slotgate-keepalive", b"", {}),
    "keep-alives that are not UTF-8": (b"x-slotgate-keepalive", b"off\xa0", {}),
    "supersede": (b"x-slotgate-supersede", b"tab 1", {"supersede_key": b"tab 1"}),
    "long supersede": (b"x-slotgate-supersede", b"k" * 257, {"supersede_key": b"k" * MAX_KEY_BYTES}),
    "empty supersede": (b"x-slotgate-supersede", b"", {}),
    "supersede that is not UTF-8": (b"x-slotgate-supersede", b"\xff", {"supersede_key": b"\xff"}),
    "queue events": (b"x-slotgate-queue-events", b"1", {"queue_events": True}),
    "queue events with spaces": (b"x-slotgate-queue-events", b" 1 ", {"queue_events": True}),
    "no queue events": (b"x-slotgate-queue-events", b"0", {}),
    "unknown queue events": (b"x-slotgate-queue-events", b"true", {}),
    "empty queue events": (b"x-slotgate-queue-events", b"", {}),
    "header that does not exist": (b"x-slotgate-other", b"1", {}),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_each_header_sets_its_option(row: tuple[bytes, bytes, dict[str, Any]]) -> None:
    name, value, expected = row
    assert changed(options_of((name, value))) == expected


def test_a_request_without_headers_has_the_defaults() -> None:
    assert options_of() == RequestOptions(
        batch=False, session=b"", keepalive=None, supersede_key=b"", queue_events=False
    )


def test_all_options_can_be_given_at_once() -> None:
    options = options_of(
        (b"x-slotgate-priority", b"batch"),
        (b"x-slotgate-session", b"s1"),
        (b"x-slotgate-keepalive", b"off"),
        (b"x-slotgate-supersede", b"k1"),
        (b"x-slotgate-queue-events", b"1"),
    )
    assert options == RequestOptions(True, b"s1", "off", b"k1", True)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        (b"x-slotgate-priority", (b"interactive", b"batch"), {"batch": True}),
        (b"x-slotgate-priority", (b"batch", b"interactive"), {}),
        (b"x-slotgate-session", (b"a", b"b"), {"session": b"b"}),
        (b"x-slotgate-keepalive", (b"off", b"chunk"), {"keepalive": "chunk"}),
        (b"x-slotgate-supersede", (b"a", b"b"), {"supersede_key": b"b"}),
        (b"x-slotgate-queue-events", (b"1", b"0"), {}),
    ],
)
def test_the_last_of_several_headers_with_one_name_counts(
    name: bytes, values: tuple[bytes, bytes], expected: dict[str, Any]
) -> None:
    assert changed(options_of(*((name, value) for value in values))) == expected


def test_the_own_session_header_wins_over_those_of_other_clients() -> None:
    claude, other = (b"x-claude-code-session-id", b"claude"), (b"x-session-id", b"other")
    assert options_of(claude, other, (b"x-slotgate-session", b"own")).session == b"own"
    assert options_of(claude, other).session == b"other"
    assert options_of(claude, (b"x-session-id", b"")).session == b"claude"


def test_a_session_key_begins_with_the_tenant() -> None:
    options = options_of((b"x-slotgate-session", b"s1"))
    assert options.session_key("team", {}) == b"team\0s1"
    assert options.session_key("team", {}) != options.session_key("other", {})


def test_the_prompt_cache_key_names_a_session_if_no_header_does() -> None:
    members = {"prompt_cache_key": "é"}
    assert options_of().session_key("team", members) == b"team\0" + "é".encode()
    assert options_of((b"x-session-id", b"s1")).session_key("team", members) == b"team\0s1"


@pytest.mark.parametrize("key", [None, "", 7, ["s1"], {"s": 1}])
def test_a_prompt_cache_key_that_is_no_text_names_no_session(key: object) -> None:
    assert options_of().session_key("team", {"prompt_cache_key": key}) == b""


def test_a_long_prompt_cache_key_is_cut() -> None:
    key = options_of().session_key("team", {"prompt_cache_key": "k" * 9000})
    assert key == b"team\0" + b"k" * MAX_KEY_BYTES


def test_a_prompt_cache_key_with_half_a_surrogate_pair_does_not_fail() -> None:
    assert options_of().session_key("team", {"prompt_cache_key": "\ud800"}) == b"team\0?"
