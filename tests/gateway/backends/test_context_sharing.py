"""Do the slots of a backend share one context? What says so, what is assumed, and what overflows teach."""

from __future__ import annotations

from slotgate.gateway.backends.context_overflow import TOGETHER_S, ContextOverflow
from slotgate.gateway.backends.context_sharing import ContextSources


def test_the_most_reliable_source_counts() -> None:
    sources = ContextSources(None)
    assert not sources.conclusion(8192, 4, 32768).unified
    assert sources.conclusion(8192, 4, 32768).assumed
    assert sources.conclusion(32768, 4, 32768).unified
    assert sources.conclusion(32768, 4, 32768).assumed
    sources.overflow.of(8192, 4).happened(0.0, known=False)
    assert sources.conclusion(8192, 4, 32768).unified
    sources.command = False
    assert not sources.conclusion(8192, 4, 32768).unified
    assert not sources.conclusion(8192, 4, 32768).assumed
    sources.process = True
    assert sources.conclusion(8192, 4, 32768).unified
    sources.setting = False
    assert not sources.conclusion(8192, 4, 32768).unified


def test_an_overflow_is_forgotten_with_other_sizes() -> None:
    sources = ContextSources(None)
    sources.overflow.of(8192, 4).happened(0.0, known=False)
    assert not sources.conclusion(8192, 8, 32768).unified
    assert not sources.conclusion(8192, 4, 32768).unified


def test_first_overflow_shows_the_sharing_and_later_ones_keep_more_free() -> None:
    overflow = ContextOverflow().of(8000, 4)
    assert overflow.happened(0.0, known=False)
    assert (overflow.is_shared, overflow.usable(8000)) == (True, 8000)
    usable = []
    for number in range(1, 7):
        assert overflow.happened(10.0 * number, known=True)
        usable.append(overflow.usable(8000))
    assert usable == [7000, 6000, 5000, 4000, 4000, 4000]


def test_requests_that_end_together_are_one_overflow() -> None:
    overflow = ContextOverflow().of(8000, 4)
    assert overflow.happened(5.0, known=True)
    assert not overflow.happened(5.0 + TOGETHER_S / 2, known=True)
    assert overflow.usable(8000) == 7000
