"""A scripted upstream: a real TCP (or Unix socket) server whose answers a test decides.

The first of these answers a request:

1. `scripts[path]`, a script or a function of the request, also for control-plane paths;
2. the control plane of `llama` (`/health`, `/props`, `/slots`, `/v1/models`, `/metrics`), in
   llama-server's shapes, and its 503 for every path while `llama.loading`;
3. `responder(request)`, unless it returns None;
4. `llama`'s own generation, in llama-server's byte shapes.

In cases 3 and 4, paths that generate take slots of `llama`, and wait silently if none is free, as in
llama-server. Leaving the block raises an error if a client broke HTTP framing or a responder raised.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from tests.support.connection import ReceivedRequest, ScriptedConnection
from tests.support.llama_like import LlamaLike
from tests.support.script import Script

Responder = Callable[[ReceivedRequest], Script | None]


class ScriptedUpstream:
    def __init__(
        self,
        responder: Responder | None = None,
        *,
        scripts: Mapping[str, Script | Callable[[ReceivedRequest], Script]] | None = None,
        llama: LlamaLike | None = None,
        uds: str | None = None,
        accepting: bool = True,
        backlog: int = 1024,
        reading: bool = True,
    ) -> None:
        """`accepting=False` accepts no connection until `accept()`, so a full `backlog` makes a connect hang.

        `reading=False` never reads from its connections.
        """
        self.responder = responder
        self.scripts = dict(scripts or {})
        self.llama = llama or LlamaLike()
        self.connections: list[ScriptedConnection] = []
        self.requests: list[ReceivedRequest] = []
        """All requests in order of arrival, including the control plane."""
        self.generations: list[ReceivedRequest] = []
        """All requests except those of the control plane."""
        self.open = 0
        """The number of open connections."""
        self.max_open = 0
        self.pulse = self.llama.pulse
        self.uds = uds
        self.port = 0
        self._accepting = accepting
        self._backlog = backlog
        self._reading = reading
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<ScriptedUpstream {self.open} open, {len(self.requests)} requests, {self.llama}>"

    @property
    def url(self) -> str:
        return f"unix:{self.uds}" if self.uds else f"http://127.0.0.1:{self.port}"

    async def until(self, condition: Callable[[], object], within: float = 2.0) -> None:
        """Wait until the condition holds. It is checked at every change of this server."""
        await self.pulse.until(condition, self, within)

    async def generation(self, number: int = 0, within: float = 2.0) -> ReceivedRequest:
        """Wait for the request for work of this number, and return it."""
        await self.until(lambda: len(self.generations) > number, within)
        return self.generations[number]

    async def at_most_open(self, connections: int, within: float = 2.0) -> None:
        """Wait until no more than that many connections are open."""
        await self.until(lambda: self.open <= connections, within)

    async def all_closed(self, within: float = 2.0) -> None:
        await self.at_most_open(0, within)

    # -- listening

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AssertionError:
            if error is None:
                raise

    async def close(self) -> None:
        """Close everything. Raises an error if a client or a responder failed."""
        self.stop_listening()
        self.abort_all()
        await self.all_closed()
        for connection in self.connections:
            if connection.failure is not None:
                raise AssertionError(f"{connection} failed") from connection.failure

    async def listen(self) -> None:
        """Listen, or listen again on the same port after `stop_listening`."""
        sock = socket.socket(socket.AF_UNIX if self.uds else socket.AF_INET)
        sock.setblocking(False)
        if self.uds:
            sock.bind(self.uds)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", self.port))
            self.port = sock.getsockname()[1]
        sock.listen(self._backlog)
        loop = asyncio.get_running_loop()
        how: dict[str, Any] = {"sock": sock, "backlog": self._backlog, "start_serving": self._accepting}
        if self.uds:
            self._server = await loop.create_unix_server(self._connected, **how)
        else:
            self._server = await loop.create_server(self._connected, **how)

    async def accept(self) -> None:
        """Accept connections from now on, those that wait in the backlog first."""
        assert self._server is not None
        await self._server.start_serving()

    def stop_listening(self) -> None:
        """Refuse new connections. Open connections stay."""
        assert self._server is not None
        self._server.close()

    def abort_all(self) -> None:
        """End every connection without a final chunk, as if the process died."""
        for connection in self.connections:
            connection.abort()

    def _connected(self) -> ScriptedConnection:
        connection = ScriptedConnection(self, reading=self._reading)
        self.connections.append(connection)
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        return connection

    # -- called by connections

    def received(self, request: ReceivedRequest) -> None:
        self.requests.append(request)
        if not self.llama.is_control(request.path):
            self.generations.append(request)

    def closed(self, connection: ScriptedConnection) -> None:
        self.open -= 1

    def wrote(self, request: ReceivedRequest) -> None:
        self.llama.had_result()

    @asynccontextmanager
    async def answer(self, request: ReceivedRequest) -> AsyncIterator[Script]:
        if request.path in self.scripts:
            script = self.scripts[request.path]
            yield script(request) if callable(script) else script
        elif (control := self.llama.control(request)) is not None:
            yield control
        else:
            async with self.llama.slot(request):
                script_or_none = self.responder(request) if self.responder else None
                yield self.llama.generate(request) if script_or_none is None else script_or_none


@contextmanager
def refusing_url() -> Iterator[str]:
    """Yield a URL whose port is taken and does not listen, so every connect is refused."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
