"""An event loop whose clock jumps instead of waiting.

When no callback is ready, the loop's time moves at once to the next timer; an hour's timeout runs in
milliseconds. When there is no timer either, every task is blocked for ever, and that is an error at once.
So is a turn of the loop that blocks in real time. No real sockets, processes or threads inside: nothing would
wait for them.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.blocking import BlockingGuard

Result = TypeVar("Result")


class BlockedForeverError(AssertionError):
    """No task can ever run again."""


class _JumpingSelector(selectors.DefaultSelector):
    """Its one file is the loop's own wake-up pipe."""

    def __init__(self, blocking_limit_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._guard = BlockingGuard(blocking_limit_s)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._guard.check()
        ready = super().select(0)
        if not ready and timeout is None:
            places = "; ".join(map(_where, asyncio.all_tasks()))
            raise BlockedForeverError(f"blocked at {self.now} s: {places}")
        if not ready and timeout is not None:
            self.now += timeout
        self._guard.begin()
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, blocking_limit_s: float) -> None:
        self._jumping = _JumpingSelector(blocking_limit_s)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(main: Coroutine[Any, Any, Result], *, blocking_limit_s: float = 0.25) -> Result:
    """`asyncio.run` on virtual time, which begins at 0. One turn may take `blocking_limit_s` of real time."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(blocking_limit_s)) as runner:
        return runner.run(main)


def _where(task: asyncio.Task[Any]) -> str:
    frame = task.get_stack(limit=1)[-1]
    return f"{task.get_name()} at {frame.f_code.co_filename}:{frame.f_lineno}"
