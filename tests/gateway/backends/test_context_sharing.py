"""Do the slots of a backend share one context? What says so, what is assumed, and what overflows teach."""

from __future__ import annotations

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.context_overflow import TOGETHER_S, ContextOverflow
from slotgate.gateway.backends.context_sharing import ContextSources


def test_the_most_reliable_source_counts() -> None:
    sources = ContextSources(None)
    assert not sources.conclusion(8192, 4, 32768).unified
    assert sources.conclusion(8192, 4, 32768).assumed
    assert sources.conclusion(32768, 4, 32768).unified
    assert sources.conclusion(32768, 4, 32768).assumed
    sources.overflow.happened(0.0, known=False)
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
    sources.overflow.resized(8192, 4)
    sources.overflow.happened(0.0, known=False)
    sources.overflow.resized(8192, 4)
    assert sources.conclusion(8192, 4, 32768).unified
    sources.overflow.resized(8192, 8)
    assert not sources.conclusion(8192, 8, 32768).unified
    sources.overflow.resized(8192, 4)
    assert not sources.conclusion(8192, 4, 32768).unified


def test_a_conclusion_for_other_sizes_forgets_nothing() -> None:
    sources = ContextSources(None)
    sources.overflow.resized(8192, 4)
    sources.overflow.happened(0.0, known=False)
    sources.conclusion(4096, 8, 32768)
    assert sources.overflow.is_shared
    assert sources.conclusion(8192, 4, 32768).unified


def test_a_backend_that_states_other_sizes_has_forgotten_what_overflowed() -> None:
    backend = Backend("gpu0", "http://127.0.0.1:1", api_key=None)
    backend.n_ctx = 8192
    backend.resize(4)
    backend.context_sources.overflow.happened(0.0, known=False)
    backend.resize(4)
    assert backend.pool.context == 8192
    backend.resize(8)
    assert backend.pool.context == 0


def test_first_overflow_shows_the_sharing_and_later_ones_keep_more_free() -> None:
    overflow = ContextOverflow()
    assert overflow.happened(0.0, known=False)
    assert (overflow.is_shared, overflow.usable(8000)) == (True, 8000)
    usable = []
    for number in range(1, 7):
        assert overflow.happened(10.0 * number, known=True)
        usable.append(overflow.usable(8000))
    assert usable == [7000, 6000, 5000, 4000, 4000, 4000]


def test_requests_that_end_together_are_one_overflow() -> None:
    overflow = ContextOverflow()
    assert overflow.happened(5.0, known=True)
    assert not overflow.happened(5.0 + TOGETHER_S / 2, known=True)
    assert overflow.usable(8000) == 7000
