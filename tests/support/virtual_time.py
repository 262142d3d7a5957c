"""The virtual-time event loop of slotgate.testing, which here also fails turns that block in real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from slotgate.gateway.testing.fake.net.virtual_time import (
    BlockedForeverError,
    JumpingSelector,
    VirtualTimeLoop,
)
from tests.support.blocking import BlockingGuard

__all__ = ["BlockedForeverError", "VirtualTimeLoop", "run_virtual"]

Result = TypeVar("Result")


class _GuardedSelector(JumpingSelector):
    def __init__(self, blocking_limit_s: float) -> None:
        super().__init__()
        self._guard = BlockingGuard(blocking_limit_s)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._guard.check()
        ready = super().select(timeout)
        self._guard.begin()
        return ready


def run_virtual(main: Coroutine[Any, Any, Result], *, blocking_limit_s: float = 0.25) -> Result:
    """Run a coroutine on virtual time. One turn may take `blocking_limit_s` of real time."""
    loop = lambda: VirtualTimeLoop(_GuardedSelector(blocking_limit_s))  # noqa: E731
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)
