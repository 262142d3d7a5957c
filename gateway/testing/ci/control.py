"""How a test leads the scripted llama-server of a `slotgate ci` that runs beside it: JSON over loopback HTTP.

The other end is `testing/pytest_plugin/`; both come from one distribution, so this is no public interface.
Each path is one method of `ControlActions`; those that wait say for how long.
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
    """What can be done. Each takes the members of the question and returns those of the answer."""

    async def reset(self, said: Members) -> Members:
        """A scripted llama-server that nobody has used, and a gateway that knows no other."""
        ...

    async def reply(self, said: Members) -> Members:
        """One more reply, before all others."""
        ...

    async def lead(self, said: Members) -> Members:
        """Begin or cease to lead answers by hand."""
        ...

    async def arrival(self, said: Members) -> Members:
        """Wait for the answer of that number that is led by hand."""
        ...

    async def cue(self, said: Members) -> Members:
        """What an answer that is led says next."""
        ...

    async def ended(self, said: Members) -> Members:
        """Wait for the end of a request."""
        ...

    async def state(self, said: Members) -> Members:
        """Slots, connections and requests, as they are now."""
        ...


class ControlServer:
    """An `ConnectionHandler`: `loop.create_server(lambda: Connection(control), …)`."""

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
            writer.write(answer(404, {"fault": "no such thing"}))
            return False
        try:
            told = await self._paths[path](orjson.loads(request.body or b"{}"))
        except (ScriptError, CassetteError, SettingsError, ValueError, LookupError, TimeoutError) as error:
            writer.write(answer(400, {"fault": str(error) or type(error).__name__}))
            return False
        writer.write(answer(200, told))
        return True
