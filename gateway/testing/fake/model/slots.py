"""The slots of a scripted llama-server, and the queue in front of them.

A request without a free slot waits in order of arrival, and its client hears nothing meanwhile. The methods
never wait: `take` returns a claim with a future, and the caller releases the claim in a `finally` clause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from slotgate.gateway.testing.fake.net.wire import Json

__all__ = ["LlamaSlots", "SlotClaim"]


@dataclass(eq=False, slots=True)
class SlotClaim:
    """A slot, or a place in the queue for one. `granted` gets the id of the slot."""

    granted: asyncio.Future[int]
    wanted: int | None = None
    """The id of the only slot that may be granted, even if others are free."""


class LlamaSlots:
    """The slots of one server."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.ever_deferred = 0
        """The number of requests that ever waited for a slot. A gateway that admits well leaves it at 0."""
        self.max_busy = 0
        self._busy: dict[int, SlotClaim] = {}
        self.work: dict[int, Json] = {}
        """Slot id -> the current or latest work of the slot, as `/slots` shows it."""
        self._queue: deque[SlotClaim] = deque()

    def __repr__(self) -> str:
        return f"<LlamaSlots {len(self._busy)}/{self.total} busy, {len(self._queue)} deferred>"

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._busy)

    @property
    def deferred(self) -> int:
        return len(self._queue)

    def take(self, wanted: int | None = None) -> SlotClaim:
        """Claim a slot, now or as soon as one is free."""
        loop = asyncio.get_running_loop()
        claim = SlotClaim(
            loop.create_future(), wanted if wanted is not None and 0 <= wanted < self.total else None
        )
        self._queue.append(claim)
        self._grant()
        if claim in self._queue:
            self.ever_deferred += 1
        return claim

    def release(self, claim: SlotClaim) -> None:
        """Free the slot of a claim, or remove the claim from the queue. Idempotent."""
        if claim in self._queue:
            self._queue.remove(claim)
        for number, holder in list(self._busy.items()):
            if holder is claim:
                del self._busy[number]
        self._grant()

    def _grant(self) -> None:
        for claim in list(self._queue):
            free = [number for number in range(self.total) if number not in self._busy]
            number = next((number for number in free if claim.wanted in (None, number)), None)
            if number is None:
                continue
            self._queue.remove(claim)
            self._busy[number] = claim
            self.max_busy = max(self.max_busy, len(self._busy))
            if not claim.granted.done():
                claim.granted.set_result(number)
