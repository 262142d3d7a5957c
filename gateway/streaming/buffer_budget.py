"""The memory that all slow readers together may hold.

Every stream is sure of `GUARANTEED_BYTES`. What it holds beyond that is drawn from one budget. When the
budget is spent, somebody has to go: of the tenant that holds most, the stalled stream that holds most. A
stream that reads is never cut for the sake of one that does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

__all__ = ["GUARANTEED_BYTES", "BufferBudget", "BufferShare"]

GUARANTEED_BYTES = 64 * 1024


class BufferShare:
    """What one stream holds. `stalled` and `cut` are its owner's."""

    __slots__ = ("bytes", "cut", "stalled", "tenant")

    def __init__(self, tenant: str, *, stalled: Callable[[], bool], cut: Callable[[], None]) -> None:
        self.tenant = tenant
        self.bytes = 0
        self.stalled = stalled
        self.cut = cut

    @property
    def drawn(self) -> int:
        return max(0, self.bytes - GUARANTEED_BYTES)


class BufferBudget:
    """Streams report sizes above their guarantee only, so a stream that keeps up costs nothing here."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.drawn = 0
        self.cuts = 0
        self._holdings: dict[BufferShare, None] = {}

    def __repr__(self) -> str:
        return f"<BufferBudget {self.drawn}/{self.total_bytes} drawn by {len(self._holdings)} streams>"

    def hold(self, holding: BufferShare, size: int) -> None:
        """The stream holds `size` bytes now. May cut a stream, this one included."""
        before = holding.drawn
        holding.bytes = size
        self.drawn += holding.drawn - before
        if holding.drawn:
            self._holdings[holding] = None
        else:
            self._holdings.pop(holding, None)
        if self.drawn > self.total_bytes and holding.drawn > before:
            self._cut_one()

    def release(self, holding: BufferShare) -> None:
        """The stream is over."""
        self.drawn -= holding.drawn
        holding.bytes = 0
        self._holdings.pop(holding, None)

    def _cut_one(self) -> None:
        by_tenant: Counter[str] = Counter()
        for holding in self._holdings:
            by_tenant[holding.tenant] += holding.bytes
        stalled = [holding for holding in self._holdings if holding.stalled()]
        if stalled:
            victim = max(stalled, key=lambda holding: (by_tenant[holding.tenant], holding.bytes))
            self.cuts += 1
            self.release(victim)
            victim.cut()
