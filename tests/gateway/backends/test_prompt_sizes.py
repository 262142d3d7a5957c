"""The estimator of prompts: learnt for each model, a likely number and one that is seldom exceeded."""

from __future__ import annotations

import pytest

from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.backends.prompt_sizes import TEMPLATE, PromptSizes


def text(size: int) -> PromptSize:
    return PromptSize(size)


def test_size_is_learnt_by_model() -> None:
    sizes = PromptSizes()
    unknown = [sizes.at_most("m", text(4000)), sizes.expected("m", text(4000))]
    for _ in range(100):
        sizes.note("m", text(1000), 300)
    assert unknown == [2200 + TEMPLATE, 1000]
    assert 1200 < sizes.at_most("m", text(4000)) - TEMPLATE < 1400
    assert sizes.expected("m", text(4000)) == pytest.approx(1200, rel=0.01)
    assert [sizes.at_most("other", text(4000)), sizes.expected("other", text(4000))] == unknown


def test_a_dense_prompt_raises_the_upper_bound_at_once_and_is_forgotten_slowly() -> None:
    sizes = PromptSizes()
    sizes.note("m", text(1000), 900)
    assert sizes.at_most("m", text(4000)) > 3600
    sizes.note("m", text(1000), 300)
    assert sizes.at_most("m", text(4000)) > 3400
    for _ in range(100):
        sizes.note("m", text(1000), 300)
    assert sizes.at_most("m", text(4000)) < 1500


def test_picture_counts_as_a_bounded_number_that_is_learnt() -> None:
    sizes = PromptSizes()
    one = PromptSize(200, pictures=1)
    assert sizes.expected("m", one) == pytest.approx(850)
    for _ in range(100):
        sizes.note("m", one, 50 + 300)
    assert sizes.expected("m", one) == pytest.approx(350, rel=0.01)
    for _ in range(100):
        sizes.note("m", one, 10**9)
    assert sizes.expected("m", one) < 8300
    assert sizes.expected("m", text(4000)) == 1000, "pictures teach nothing about text"


def test_upper_bound_is_never_below_the_expected_number() -> None:
    sizes = PromptSizes()
    for tokens in (1, 500, 20, 900, 3):
        sizes.note("m", text(1000), tokens)
        sizes.note("m", PromptSize(1000, pictures=2), tokens * 10)
        for size in (text(4000), PromptSize(4000, pictures=3)):
            assert sizes.expected("m", size) <= sizes.at_most("m", size)


def test_short_bodies_audio_and_answers_without_counts_teach_nothing() -> None:
    sizes = PromptSizes()
    before = sizes.at_most("m", text(4000)), sizes.expected("m", text(4000))
    sizes.note("m", text(100), 90)
    sizes.note("m", text(10_000), 0)
    sizes.note("m", PromptSize(1000, audio_bytes=1000), 700)
    assert (sizes.at_most("m", text(4000)), sizes.expected("m", text(4000))) == before
