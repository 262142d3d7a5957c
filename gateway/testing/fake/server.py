"""The sockets of a scripted llama-server: listening, loading, crashing, closing.

A crash looks as a client of a dying process sees it: every connection ends without a final chunk and the port
refuses connections. Then the server listens again and loads its model.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from slotgate.gateway.testing.fake.llama import FakeLlama
from slotgate.gateway.testing.fake.net.connection import LlamaConnection
from slotgate.gateway.testing.fake.net.http1 import Message
from slotgate.gateway.testing.fake.net.writer import ResponseWriter
from slotgate.gateway.testing.fake.script.scene import Scene

__all__ = ["FakeServer"]

LOOPBACK: Final = "127.0.0.1"


class FakeServer:
    """A server for use as `async with FakeServer(scene) as server:`. It listens inside the block."""

    def __init__(self, scene: Scene, *, host: str = LOOPBACK, port: int = 0) -> None:
        self.llama = FakeLlama(scene)
        self.llama.on_crash = self._crash
        self.host = host
        self.port = port
        self._loop = asyncio.get_running_loop()
        self._listener: asyncio.Server | None = None
        self._connections: set[LlamaConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._return: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<FakeServer {self.url}, {len(self._connections)} connections, {self.llama!r}>"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """The number of connections that are open now."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self) -> None:
        """Start to listen and to load the model. Raises OSError."""
        listener = await self._loop.create_server(lambda: LlamaConnection(self), self.host, self.port)
        self._listener = listener
        self.port = listener.sockets[0].getsockname()[1]
        load_s = self.llama.scene.machine.load_s
        self.llama.loading = load_s > 0
        if load_s:
            self._timer = self._loop.call_later(load_s, self._loaded)

    async def close(self) -> None:
        self._stop()
        if self._return is not None:
            self._return.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._empty.wait()

    # -- Answerer

    def opened(self, connection: LlamaConnection) -> None:
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: LlamaConnection) -> None:
        """Forget the connection. Its request may go on, because llama-server has not noticed yet."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def answer(self, request: Message, writer: ResponseWriter) -> bool:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await self.llama.answer(request, writer)

    # -- the life of the process

    def _loaded(self) -> None:
        self.llama.loading = False

    def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()

    def _crash(self, seconds: float) -> None:
        self._stop()
        self._return = self._loop.create_task(self._come_back(seconds))

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.listen()
