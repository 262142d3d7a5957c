"""The memory that answers which nobody has read yet may hold together.

Every stream may hold `GUARANTEED_BYTES`. Anything beyond that is drawn from one budget. When the budget is
spent, one stream is cancelled. Only stalled streams are considered: of the tenant that holds most in them,
the largest is cancelled. A stream whose client reads is never cancelled for one whose client does not. The
parts of a split answer count as a stalled stream, because no client can read them yet.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

__all__ = ["GUARANTEED_BYTES", "BufferBudget", "BufferedStream"]

GUARANTEED_BYTES = 64 * 1024


class BufferedStream(Protocol):
    tenant: str

    @property
    def stalled(self) -> bool:
        """True while a `send` is under way, which the client delays, or while nothing can be sent yet."""

    def cancel(self) -> None:
        """End the stream, because all streams together hold too much."""


class BufferBudget:
    """The budget of all streams.

    They report only sizes above their guarantee, so a stream that keeps up costs nothing here.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.drawn = 0
        """The sum of what the streams hold beyond their guarantees."""
        self._held: dict[BufferedStream, int] = {}
        """Stream -> the bytes that it holds, for streams above their guarantee."""

    def __repr__(self) -> str:
        return f"<BufferBudget {self.drawn}/{self.total_bytes} drawn by {len(self._held)} streams>"

    def hold(self, stream: BufferedStream, size: int) -> None:
        """Note that the stream holds `size` bytes now. May cancel a stream, this one included."""
        before = self._held.get(stream, GUARANTEED_BYTES)
        if size > GUARANTEED_BYTES:
            self._held[stream] = size
        else:
            self._held.pop(stream, None)
            size = GUARANTEED_BYTES
        self.drawn += size - before
        if self.drawn > self.total_bytes and size > before:
            self._cancel_one()

    def release(self, stream: BufferedStream) -> None:
        """Note that the stream holds nothing any more."""
        self.hold(stream, 0)

    def _cancel_one(self) -> None:
        by_tenant: Counter[str] = Counter()
        for stream, size in self._held.items():
            by_tenant[stream.tenant] += size
        stalled = [stream for stream in self._held if stream.stalled]
        if stalled:
            victim = max(stalled, key=lambda stream: (by_tenant[stream.tenant], self._held[stream]))
            self.release(victim)
            victim.cancel()
