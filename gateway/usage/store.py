"""Where records are kept, as the rest sees it.

A store is used from two threads: `write` and `close` by the recorder's alone, everything else by those who
ask, each time with a connection of its own. Nothing here is ever called on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple, Protocol

from slotgate.gateway.usage.query import UsageQuery, UsageTotal
from slotgate.gateway.usage.record import UsageRecord

__all__ = ["StoreError", "StoreFault", "UsageRow", "UsageStore"]


class StoreError(Exception):
    """The store cannot be used now, and may be later: locked, unreachable, gone."""


class StoreFault(StoreError):
    """The store cannot be used until its operator has corrected something; the text says what."""


class UsageRow(NamedTuple):
    """A record under the name by which a store knows it again, should it be written twice."""

    writer: str
    number: int
    record: UsageRecord


class UsageStore(Protocol):
    @property
    def place(self) -> str:
        """Where it is, in words, without a password."""

    def fault(self) -> str | None:
        """What an operator has to correct before it can work, as far as can be seen without touching it."""

    def prepare(self) -> None:
        """Make it ready to be written, and older versions of it new. Raises `StoreError`."""

    def write(self, rows: Sequence[UsageRow]) -> None:
        """All of them, or none and `StoreError`. Rows that are there already are left as they are."""

    def close(self) -> None:
        """Let go of what `write` holds."""

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        """Prompt and completion tokens of a UTC day together. Raises `StoreError`."""

    def totals(self, question: UsageQuery, *, within_s: float | None = None) -> list[UsageTotal]:
        """Sums by group, in the groups' order. Raises `StoreError`, also when it takes longer."""
