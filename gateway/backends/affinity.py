"""Remembers which backend probably still holds the beginning of a prompt in its KV cache.

A prompt has a `PromptPrefix`: a hash for each of its beginnings (`api/prompt_prefix.py`). Each backend
remembers the beginnings that it served lately. The next turn of a conversation repeats the last one and adds
to it, so the backend that knows the longest of its beginnings is the warm one. If the client names a session,
the session counts as the longest beginning.

This module decides nothing: admission weighs warmth against free slots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from slotgate.gateway.api.prompt_prefix import PromptPrefix

__all__ = ["Affinity"]

REMEMBERED = 4096
"""The number of beginnings and sessions kept for each backend: some hundred kilobytes."""
SESSION_BYTES = 1 << 30


class Affinity:
    """Remembers the beginnings of prompts by pool name."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._known: dict[str, OrderedDict[bytes, int | None]] = {}
        """Pool name -> beginning -> id of the slot that holds it; None where slots have no numbers."""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(known)}" for name, known in self._known.items())
        return f"<Affinity {sizes or 'empty'}>"

    def note(self, pool: str, prefix: PromptPrefix, slots: tuple[int, ...] = ()) -> None:
        """Note that this pool processes this prompt now, in one of these slots."""
        number = slots[0] if len(slots) == 1 else None
        known = self._known.setdefault(pool, OrderedDict())
        for mark in (*(mark for mark, _ in prefix.beginnings), *_session_mark(prefix)):
            known[mark] = number
            known.move_to_end(mark)
        while len(known) > self._remembered:
            known.popitem(last=False)
        for mark in _session_mark(prefix):  # a session has one home
            for other, marks in self._known.items():
                if other != pool:
                    marks.pop(mark, None)

    def forget(self, pool: str) -> None:
        """Forget a backend that has restarted or is gone."""
        self._known.pop(pool, None)

    def warmth(self, prefix: PromptPrefix) -> dict[str, int]:
        """Return pool name -> bytes of the prompt's beginning that it has probably processed already."""
        found = {pool: _bytes_known(known, prefix) for pool, known in self._known.items()}
        return {pool: size for pool, size in found.items() if size}

    def slots(self, prefix: PromptPrefix) -> dict[str, int]:
        """Return pool name -> id of the slot that probably holds the prefix (numbered pools only)."""
        found = {pool: _number_known(known, prefix) for pool, known in self._known.items()}
        return {pool: number for pool, number in found.items() if number is not None}


def _bytes_known(known: Mapping[bytes, int | None], prefix: PromptPrefix) -> int:
    if any(mark in known for mark in _session_mark(prefix)):
        return SESSION_BYTES
    return next((size for mark, size in reversed(prefix.beginnings) if mark in known), 0)


def _number_known(known: Mapping[bytes, int | None], prefix: PromptPrefix) -> int | None:
    marks = (*_session_mark(prefix), *(mark for mark, _ in reversed(prefix.beginnings)))
    return next((known[mark] for mark in marks if mark in known), None)


def _session_mark(prefix: PromptPrefix) -> tuple[bytes, ...]:
    return (b"session " + prefix.session,) if prefix.session else ()
