"""An event loop whose clock jumps instead of waiting, with a network that is in its memory.

When no callback is ready, time moves at once to the next timer: an hour's prompt is read in a millisecond.
When there is no timer either, every task is blocked for ever, and that is an error at once. What listens with
`create_server` is reached by `create_connection` of the same loop, and nothing else is; so a `FakeServer`, a
gateway and a client can run in one unit test. No real sockets, processes or threads inside: nothing would
wait for them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from slotgate.gateway.testing.fake.net.memory_network import MemoryNetwork, MemoryServer

__all__ = ["BlockedForeverError", "JumpingSelector", "VirtualTimeLoop", "run_virtual"]

Result = TypeVar("Result")


class BlockedForeverError(AssertionError):
    """No task can ever run again."""


class JumpingSelector(selectors.DefaultSelector):
    """Its one file is the loop's own wake-up pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            places = "; ".join(map(_where, asyncio.all_tasks()))
            raise BlockedForeverError(f"blocked at {self.now} s: {places}")
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: JumpingSelector | None = None) -> None:
        self._jumping = selector or JumpingSelector()
        self._network = MemoryNetwork(self)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str = "127.0.0.1",
        port: int = 0,
        **_: Any,  # noqa: ANN401
    ) -> MemoryServer:
        return self._network.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str = "127.0.0.1",
        port: int = 0,
        **_: Any,  # noqa: ANN401
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Raises ConnectionRefusedError where nobody listens."""
        return self._network.connect(protocol_factory, host, port)


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "its beginning"
    return f"{task.get_name()} at {place}"
