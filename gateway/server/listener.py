"""The listener, and the order in which it stops.

Nothing of uvicorn's own `Server` is left to inherit: it looks for a signal ten times a second, waits for
connections before it tells anybody that it stops, cancels what is left, raises the signal again (exit
143), and exits 3 when the port is taken. What is used are its `Config`, its ASGI bridge and its protocol.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from email.utils import formatdate

from starlette.types import ASGIApp
from uvicorn import Config

from slotgate.gateway.server.connection import ClientConnection
from slotgate.gateway.server.connection_registry import ConnectionRegistry
from slotgate.gateway.settings import ServerSettings

__all__ = ["ListenError", "Listener"]

CUT_S = 1.0
"""How long streams that are cut may take to tell their clients, and requests to clean up."""


class ListenError(Exception):
    """The server cannot listen as it is told to; says why in a sentence."""


class Listener:
    """Belongs to the running event loop. `listen`, then `drain` or `close`."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.url = ""
        """Where it listens; empty before."""
        self.connections = ConnectionRegistry(settings)
        self._settings = settings
        self._config = _config(app, settings)
        self._listener: asyncio.Server | None = None
        self._clock: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Listener {self.url or 'not listening'} {self.connections!r}>"

    async def listen(self) -> None:
        """Accept connections from now on. Raises `ListenError`."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        try:
            self._config.load()
            self._listener = await loop.create_server(
                lambda: ClientConnection(self._config, self.connections),
                settings.host,
                settings.port,
                ssl=self._config.ssl,
                ssl_handshake_timeout=settings.header_timeout_s if self._config.ssl else None,
                backlog=self._config.backlog,
            )
        except OSError as error:
            raise ListenError(_why(error, settings)) from error
        self._keep_date(loop)
        scheme = "https" if self._config.ssl else "http"
        self.url = f"{scheme}://{_authority(settings.host, self._listener.sockets[0].getsockname()[1])}"

    async def drain(self, *, refuse: Callable[[], None], cut: Callable[[], None]) -> None:
        """Stop in order; nothing is left when this returns, at the latest `CUT_S` after the grace.

        `refuse` is called at once: what waits and what comes is to be answered with 503. `cut` is called when
        the grace is over: what still runs is to be ended with an error that its client can read.
        """
        settings = self._settings
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + settings.shutdown_grace_s
        refuse()
        self.connections.drain()
        await asyncio.sleep(settings.drain_delay_s)
        self._stop_listening()
        await asyncio.sleep(0)  # what was accepted with the last look at the listener is announced
        self.connections.drain()
        if not await self.connections.gone(within=grace_ends - loop.time()):
            cut()
            await self.connections.gone(within=CUT_S)
        self.close()
        if self.connections.tasks:
            await asyncio.wait(self.connections.tasks, timeout=CUT_S)

    def close(self) -> None:
        """Stop now. Requests under way see their client leave."""
        self._stop_listening()
        self.connections.abort()
        if self._clock is not None:
            self._clock.cancel()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _keep_date(self, loop: asyncio.AbstractEventLoop) -> None:
        """The date header of every response, made once a second."""
        self.connections.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = loop.call_later(1.0, self._keep_date, loop)


def _config(app: ASGIApp, settings: ServerSettings) -> Config:
    return Config(
        app,
        interface="asgi3",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(error: OSError, settings: ServerSettings) -> str:
    reasons = {
        errno.EADDRINUSE: "another program listens there; see server.port",
        errno.EACCES: "this user may not listen there; see server.port",
        errno.EADDRNOTAVAIL: "this machine has no such address; see server.host",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return f"Cannot listen on {_authority(settings.host, settings.port)}: {reason}"
