"""The JSON interface by which a test controls the scripted llama-server of a `slotgate ci`.

The client is `testing/pytest_plugin/`. Both come from one distribution, so this interface is not public. It
listens on loopback. Each path calls one method of `ControlActions`. Calls that wait have a limit, `within`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import orjson

from slotgate.gateway.settings import SettingsError
from slotgate.gateway.testing.cassette import CassetteError
from slotgate.gateway.testing.fake.net.connection import LlamaConnection
from slotgate.gateway.testing.fake.net.http1 import Message
from slotgate.gateway.testing.fake.net.wire import answer
from slotgate.gateway.testing.fake.net.writer import ResponseWriter
from slotgate.gateway.testing.fake.script.reader import ScriptError

__all__ = ["TOKEN_HEADER", "ControlActions", "ControlServer"]

TOKEN_HEADER: Final = b"x-slotgate-control"
Members = dict[str, Any]


class ControlActions(Protocol):
    """The actions. Each takes the members of the request and returns the members of the answer."""

    async def reset(self, said: Members) -> Members:
        """Replace the llama-server behind the gateway by a new one."""
        ...

    async def reply(self, said: Members) -> Members:
        """Add a reply before all others."""
        ...

    async def lead(self, said: Members) -> Members:
        """Begin or stop to let the test lead answers."""
        ...

    async def arrival(self, said: Members) -> Members:
        """Wait for the request of a led answer, by its number."""
        ...

    async def cue(self, said: Members) -> Members:
        """Add cues to a led answer."""
        ...

    async def ended(self, said: Members) -> Members:
        """Wait for the end of a request, by its number among all requests for work."""
        ...

    async def state(self, said: Members) -> Members:
        """Return the current slots, connections and requests."""
        ...


class ControlServer:
    """A `ConnectionHandler`: `loop.create_server(lambda: Connection(control), …)`."""

    def __init__(self, actions: ControlActions, token: str) -> None:
        self._token = token.encode()
        self._open: set[LlamaConnection] = set()
        self._paths: dict[str, Callable[[Members], Awaitable[Members]]] = {
            "/reset": actions.reset,
            "/reply": actions.reply,
            "/lead": actions.lead,
            "/arrival": actions.arrival,
            "/cue": actions.cue,
            "/ended": actions.ended,
            "/state": actions.state,
        }

    def __repr__(self) -> str:
        return f"<ControlServer {len(self._open)} connections>"

    def opened(self, connection: LlamaConnection) -> None:
        self._open.add(connection)

    def closed(self, connection: LlamaConnection) -> None:
        self._open.discard(connection)

    def abort(self) -> None:
        for connection in list(self._open):
            connection.abort()

    async def answer(self, request: Message, writer: ResponseWriter) -> bool:
        path = request.head.start_line.split(b" ")[1].decode("latin-1")
        token = request.head.get(TOKEN_HEADER) or b""
        if not hmac.compare_digest(token, self._token) or path not in self._paths:
            writer.write(answer(404, {"fault": "unknown path or wrong token"}))
            return False
        try:
            result = await self._paths[path](orjson.loads(request.body or b"{}"))
        except (ScriptError, CassetteError, SettingsError, ValueError, LookupError, TimeoutError) as error:
            writer.write(answer(400, {"fault": str(error) or type(error).__name__}))
            return False
        writer.write(answer(200, result))
        return True
