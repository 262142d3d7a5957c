"""The listener, and the order in which it stops.

It uses uvicorn's `Config`, ASGI bridge and protocol, but not its `Server`, which looks for a signal ten
times a second, waits for connections before it tells the application to stop, cancels the requests that are
left, raises the signal again (exit code 143), and exits with code 3 if the port is taken.
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

CANCEL_S = 1.0
"""Seconds for which cancelled streams may tell their clients, and for which requests may clean up."""


class ListenError(Exception):
    """The listener cannot listen as configured. The message says why, as a sentence."""


class Listener:
    """Belongs to the running event loop. `listen`, then `drain` or `close`."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, *, reserve_for: tuple[bytes, ...] = ()
    ) -> None:
        """`reserve_for` are paths that are served while all connections are in use."""
        self.url = ""
        """The address on which it listens; empty before `listen`."""
        self.connections = ConnectionRegistry(settings, reserve_for)
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

    async def drain(
        self, *, refuse: Callable[[], None] | None = None, cancel: Callable[[], None] | None = None
    ) -> None:
        """Stop in order. Nothing is left when this returns, at most `CANCEL_S` after the grace period.

        `refuse` is called at once: waiting and new requests must be answered with 503 from then on. `cancel`
        is called when the grace period is over: running requests must end with an error that the client can
        read.
        """
        settings = self._settings
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + settings.shutdown_grace_s
        if refuse is not None:
            refuse()
        self.connections.drain()
        await asyncio.sleep(settings.drain_delay_s)
        self._stop_listening()
        await asyncio.sleep(0)  # connections that were accepted just now become known
        self.connections.drain()
        if not await self.connections.gone(within=grace_ends - loop.time()):
            if cancel is not None:
                cancel()
            await self.connections.gone(within=CANCEL_S)
        self.close()
        if self.connections.tasks:
            await asyncio.wait(self.connections.tasks, timeout=CANCEL_S)

    def close(self) -> None:
        """Stop now. To requests under way, their client seems to have left."""
        self._stop_listening()
        self.connections.abort()
        if self._clock is not None:
            self._clock.cancel()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _keep_date(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew the date header of all responses, once a second."""
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
