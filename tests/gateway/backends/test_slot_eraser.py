"""Slots of isolated requests are erased. An erasure that fails is tried again until it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.slot_eraser import AGAIN_S, ASK_S, SlotEraser
from tests.support.virtual_time import run_virtual

ERASE = "/slots/{}?action=erase"
Fate = Callable[[], int]
"""The fate of one query: it returns a status, or it raises."""
NEVER = 1000.0


class Course:
    """A backend whose queries have these fates, one after another; all later ones succeed."""

    def __init__(self, *fates: Fate | None) -> None:
        """A fate of None means that no answer comes."""
        self.asked: list[tuple[float, str]] = []
        self.told: list[float] = []
        self.unclean: list[list[int]] = []
        self._fates = list(fates)

    async def run(self, *numbers: int, seconds: float = 100.0) -> None:
        loop = asyncio.get_running_loop()
        backend = Backend("gpu", "http://127.0.0.1:1", api_key=None)
        backend.ask = self.ask  # type: ignore[method-assign]
        eraser = SlotEraser(backend, lambda: self.told.append(loop.time()))
        eraser.start()
        try:
            backend.pool.unclean.update(dict.fromkeys(numbers, 0.0))
            for observer in backend.pool.on_unclean:
                observer()
            await asyncio.sleep(seconds)
            self.unclean.append(list(backend.pool.unclean))
        finally:
            await eraser.stop()
            await backend.aclose()

    async def ask(self, path: str, method: str = "GET") -> httpx.Response:
        self.asked.append((asyncio.get_running_loop().time(), f"{method} {path}"))
        fate = self._fates.pop(0) if self._fates else lambda: 200
        if fate is None:
            await asyncio.sleep(NEVER)
            raise AssertionError("the eraser has waited longer than it may")
        return httpx.Response(fate())


def unreachable() -> int:
    raise httpx.ConnectError("refused")


def run(*fates: Fate | None, numbers: tuple[int, ...] = (0,)) -> Course:
    course = Course(*fates)
    run_virtual(course.run(*numbers))
    return course


def test_each_slot_is_erased_once_and_admission_hears_it_at_once() -> None:
    course = run(numbers=(0, 3))
    assert course.asked == [(0.0, f"POST {ERASE.format(0)}"), (0.0, f"POST {ERASE.format(3)}")]
    assert (course.told, course.unclean) == ([0.0, 0.0], [[]])


@pytest.mark.parametrize(
    ("fate", "again_at"),
    [(lambda: 501, AGAIN_S), (lambda: 503, AGAIN_S), (unreachable, AGAIN_S), (None, ASK_S + AGAIN_S)],
    ids=["it cannot", "it loads", "it is not there", "it does not answer"],
)
def test_a_failed_erasing_is_tried_again_and_the_slot_stays_out_until_then(
    fate: Fate | None, again_at: float
) -> None:
    course = run(fate, fate)
    assert [at for at, _ in course.asked] == [0.0, again_at, 2 * again_at]
    assert (course.told, course.unclean) == ([2 * again_at], [[]])


def test_a_failed_erasing_does_not_delay_the_other_slots() -> None:
    course = run(unreachable, numbers=(0, 1))
    assert course.told == [0.0, AGAIN_S]
