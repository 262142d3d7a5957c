"""uvicorn, with what a streaming gateway needs besides.

`Protocol` gives each request a way to cut its connection (`extensions["slotgate.abort"]`): a client that no
longer reads can not be closed politely, because closing waits for what it does not read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.settings import Server as ServerSettings

__all__ = ["build_config", "build_server"]


class Protocol(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # a TypedDict without our extension
        scope["extensions"] = {"slotgate.abort": self.transport.abort}


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening()


def build_server(
    app: ASGIApp, settings: ServerSettings, on_listening: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    return Server(build_config(app, settings), on_listening)


def build_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Protocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=int(settings.shutdown_grace_s),
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
