"""The likely length of an answer is learnt from the latest answers of its kind."""

from __future__ import annotations

from slotgate.gateway.backends.answer_sizes import LEAST_ANSWERS, AnswerSizes

KIND = ("tenant", "/v1/chat/completions", "m")


def test_an_answer_is_likely_a_bit_longer_than_the_longest_of_the_latest() -> None:
    sizes = AnswerSizes()
    for tokens in (10, 400, 20):
        sizes.note(KIND, tokens)
    assert sizes.likely(KIND) is None, "three answers say too little"
    sizes.note(KIND, 30)
    assert sizes.likely(KIND) == 400 * 1.25 + 32
    for _ in range(32):
        sizes.note(KIND, 40)
    assert sizes.likely(KIND) == 40 * 1.25 + 32


def test_kinds_are_told_apart_and_limited_in_number() -> None:
    sizes = AnswerSizes()
    for _ in range(LEAST_ANSWERS):
        sizes.note(KIND, 10)
    assert sizes.likely(("another", *KIND[1:])) is None
    for number in range(5000):
        sizes.note((f"t{number}", *KIND[1:]), 1)
    assert sizes.likely(KIND) is None
    assert len(sizes._kinds) == 4096
