"""Finds the backend that knows the beginning of a prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.prompt_prefix import PromptPrefix, messages_prefix, text_prefix
from slotgate.gateway.backends.affinity import SESSION_BYTES, Affinity

SYSTEM = {"role": "system", "content": "be kind"}


def turn(*said: str, **more: object) -> dict[str, Any]:
    roles = ["user", "assistant"]
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    return {"messages": [SYSTEM, *messages], **more}


def test_the_next_turn_is_warm_where_the_last_one_was() -> None:
    affinity = Affinity()
    affinity.note("a", messages_prefix(turn("hi")))
    affinity.note("b", messages_prefix(turn("good day")))
    warmth = affinity.warmth(messages_prefix(turn("hi", "hello", "how are you?")))
    assert warmth["a"] > warmth["b"] > 0, "both know the system message"


@pytest.mark.parametrize("change", ["tools", "system"])
def test_text_rendered_before_the_messages_is_part_of_every_prefix(change: str) -> None:
    affinity = Affinity()
    affinity.note("a", messages_prefix(turn("hi")))
    assert not affinity.warmth(messages_prefix(turn("hi", "hello", "so", **{change: [{"name": "x"}]})))


def test_the_hash_of_a_beginning_covers_all_earlier_messages() -> None:
    affinity = Affinity()
    affinity.note("a", messages_prefix(turn("one", "two", "three")))
    full = affinity.warmth(messages_prefix(turn("one", "two", "three", "four", "five")))["a"]
    part = affinity.warmth(messages_prefix(turn("one", "TWO", "three", "four", "five")))["a"]
    assert part < full


def test_texts_are_known_by_blocks() -> None:
    affinity = Affinity()
    affinity.note("a", text_prefix({"prompt": "x" * 10_000}))
    assert affinity.warmth(text_prefix({"prompt": "x" * 7000 + "y" * 3000}))["a"] == 3 * 2048
    assert not affinity.warmth(text_prefix({"input_prefix": "z" * 10_000}))
    assert text_prefix({"prompt": [1, 2]}) == PromptPrefix()


def test_a_session_is_as_good_as_any_beginning_and_has_one_home() -> None:
    affinity = Affinity()
    affinity.note("a", PromptPrefix(session=b"t\0s"))
    assert affinity.warmth(PromptPrefix(session=b"t\0s")) == {"a": SESSION_BYTES}
    affinity.note("b", PromptPrefix(session=b"t\0s"))
    assert affinity.warmth(PromptPrefix(session=b"t\0s")) == {"b": SESSION_BYTES}
    assert affinity.warmth(PromptPrefix(session=b"u\0s")) == {}


def test_a_backend_that_restarts_knows_nothing() -> None:
    affinity = Affinity()
    affinity.note("a", messages_prefix(turn("hi")))
    affinity.forget("a")
    affinity.forget("never known")
    assert affinity.warmth(messages_prefix(turn("hi"))) == {}


@pytest.mark.slow
@given(st.lists(st.text(max_size=5), max_size=60))
def test_memory_is_bounded_and_the_latest_is_known(said: list[str]) -> None:
    affinity = Affinity(remembered=10)
    for text in said:
        affinity.note("a", messages_prefix(turn(text)))
        assert affinity.warmth(messages_prefix(turn(text)))["a"] > 0
    assert all(len(known) <= 10 for known in affinity._known.values())


def test_a_big_picture_is_looked_at_in_part() -> None:
    picture, other = "a" * 10_000_000, "a" * 9_999_999
    assert messages_prefix(turn(picture)) != messages_prefix(turn(other))
    assert len(messages_prefix(turn(*["x"] * 1000)).beginnings) == 64


def test_only_the_beginning_of_a_long_list_is_read() -> None:
    endless = [str(number) for number in range(5000)]
    affinity = Affinity()
    affinity.note("a", messages_prefix(turn(*endless)))
    assert affinity.warmth(messages_prefix(turn(*endless, "one more")))["a"] > 0
    assert messages_prefix(turn(*endless)) == messages_prefix(turn(*endless, "one more"))
