"""An event loop whose clock jumps instead of waiting.

When no callback is ready, the loop's time moves at once to the next timer; an hour's timeout runs in
milliseconds. When there is no timer either, every task is blocked for ever, and that is an error at once.
No real sockets, processes or threads inside: nothing would wait for them.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class BlockedForeverError(AssertionError):
    """No task can ever run again."""


class _JumpingSelector(selectors.DefaultSelector):
    """Its one file is the loop's own wake-up pipe."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise BlockedForeverError(
                f"blocked at {self.now} s: " + "; ".join(map(_where, asyncio.all_tasks()))
            )
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _where(task: asyncio.Task[Any]) -> str:
    frame = task.get_stack(limit=1)[-1]
    return f"{task.get_name()} at {frame.f_code.co_filename}:{frame.f_lineno}"
