"""Learns from requests that llama-server ended because the context that they share was full.

The first time shows that the slots share one context. If that was known, prompts were longer than estimated,
so a part of the context is kept free: an eighth more each time, up to a half. All requests of a backend end
together; that is one time. Other sizes mean that llama-server was started anew in another way.

This module is pure; times are passed in.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

__all__ = ["ContextOverflow"]

STEP: Final = Fraction(1, 8)
MOST: Final = Fraction(1, 2)
TOGETHER_S: Final = 1.0


class ContextOverflow:
    def __init__(self) -> None:
        self._sizes = (0, 0)
        self._forget()

    def _forget(self) -> None:
        self.is_shared = False
        self._kept_free = Fraction(0)
        self._at: float | None = None

    def __repr__(self) -> str:
        return f"<ContextOverflow {'shared' if self.is_shared else 'none'}, {self._kept_free} kept free>"

    def resized(self, n_ctx: int, slots: int) -> None:
        """Note the sizes of the backend. Everything is forgotten if they are others than before.

        `n_ctx` is the context of one slot, in tokens.
        """
        if self._sizes != (n_ctx, slots):
            self._forget()
            self._sizes = n_ctx, slots

    def happened(self, now: float, *, known: bool) -> bool:
        """Note an overflow. Return True unless it is the same as the last one.

        `known`: the context was given out as a shared one.
        """
        if self._at is not None and now - self._at < TOGETHER_S:
            return False
        self._at = now
        self.is_shared = True
        if known:
            self._kept_free = min(self._kept_free + STEP, MOST)
        return True

    def usable(self, n_ctx: int) -> int:
        """Return the tokens of a shared context that may be given out."""
        return int(n_ctx * (1 - self._kept_free))
