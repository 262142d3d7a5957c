"""The interface of a store of usage records.

Two threads use a store. Only the recorder's thread calls `write` and `close`. Another thread calls everything
else, each time with a connection of its own. The event loop never calls a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple, Protocol

from slotgate.gateway.usage.query import UsageQuery, UsageTotal
from slotgate.gateway.usage.record import UsageRecord

__all__ = ["StoreError", "StoreFault", "UsageRow", "UsageStore"]


class StoreError(Exception):
    """The store cannot be used now, and may work later: it is locked or unreachable."""


class StoreFault(StoreError):
    """The store cannot be used until the operator has corrected what the message says."""


class UsageRow(NamedTuple):
    """A record with its primary key, so that the store recognises a record that is written twice."""

    writer: str
    number: int
    record: UsageRecord


class UsageStore(Protocol):
    @property
    def place(self) -> str:
        """The store as text, without secrets."""

    def fault(self) -> str | None:
        """Return what the operator has to correct, or None. The store is not opened for it."""

    def prepare(self) -> None:
        """Create the table or upgrade an older one. Raises `StoreError`."""

    def write(self, rows: Sequence[UsageRow]) -> None:
        """Write all rows, or none and raise `StoreError`. Rows that exist already are left as they are."""

    def close(self) -> None:
        """Close the connection that `write` keeps open."""

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        """Return the tokens of each tenant on a UTC day, prompts and answers together.

        Raises `StoreError`.
        """

    def totals(self, question: UsageQuery, *, within_s: float | None = None) -> list[UsageTotal]:
        """Return the sums by group, ordered by group. Raises `StoreError`, also after `within_s`."""
