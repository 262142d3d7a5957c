"""The slots of a scripted llama-server and the line in front of them.

Who finds no slot waits in silence, in order of arrival. Synchronous: a place is a future; whoever waits for
it does so elsewhere, and gives it back in a `finally`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from slotgate.gateway.testing.fake.net.wire import Json

__all__ = ["Place", "Slots"]


@dataclass(eq=False, slots=True)
class Place:
    """A slot, or a place in the line for one. `granted` gets its number."""

    granted: asyncio.Future[int]
    wanted: int | None = None
    """The slot that it must be, though others are free."""


class Slots:
    def __init__(self, total: int) -> None:
        self.total = total
        self.ever_deferred = 0
        """Requests that had to wait in here. A gateway that admits well leaves it at 0."""
        self.max_busy = 0
        self._busy: dict[int, Place] = {}
        self.work: dict[int, Json] = {}
        """What each slot does, or did last, as `/slots` tells it."""
        self._line: deque[Place] = deque()

    def __repr__(self) -> str:
        return f"<Slots {len(self._busy)}/{self.total} busy, {len(self._line)} deferred>"

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._busy)

    @property
    def deferred(self) -> int:
        return len(self._line)

    def take(self, wanted: int | None = None) -> Place:
        """A slot now, or as soon as one is free."""
        loop = asyncio.get_running_loop()
        place = Place(
            loop.create_future(), wanted if wanted is not None and 0 <= wanted < self.total else None
        )
        self._line.append(place)
        self._grant()
        if place in self._line:
            self.ever_deferred += 1
        return place

    def give_back(self, place: Place) -> None:
        """Idempotent; a place that never became a slot leaves the line."""
        if place in self._line:
            self._line.remove(place)
        for number, holder in list(self._busy.items()):
            if holder is place:
                del self._busy[number]
        self._grant()

    def _grant(self) -> None:
        for place in list(self._line):
            free = [number for number in range(self.total) if number not in self._busy]
            number = next((number for number in free if place.wanted in (None, number)), None)
            if number is None:
                continue
            self._line.remove(place)
            self._busy[number] = place
            self.max_busy = max(self.max_busy, len(self._busy))
            if not place.granted.done():
                place.granted.set_result(number)
