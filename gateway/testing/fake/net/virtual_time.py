"""An event loop whose clock jumps instead of waiting, with a network in memory.

When no callback is ready, the clock moves at once to the next timer, so a prompt of an hour takes a
millisecond. When there is no timer either, no task can ever run again, and the loop raises an error.
`create_connection` reaches the servers that `create_server` of the same loop started, and nothing else. So a
`FakeServer`, a gateway and a client can run in one unit test. Do not use real sockets, processes or threads
inside: the clock does not wait for them.
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
    """A selector that moves its clock instead of waiting. It watches only the loop's own wake-up pipe."""

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
    """An event loop on virtual time with a `MemoryNetwork`."""

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
        """Raises ConnectionRefusedError if no server listens on the address."""
        return self._network.connect(protocol_factory, host, port)


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as `asyncio.run` does, on a clock that begins at 0 and jumps instead of waiting."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "its beginning"
    return f"{task.get_name()} at {place}"
