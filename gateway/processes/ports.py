"""Finds free ports, and tells if a port is free.

Another program may take a port that was free a moment ago. The caller must check that its own bind worked.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

__all__ = ["LOOPBACK", "cannot_listen", "free_port", "next_free_port"]

LOOPBACK: Final = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback interface on which no program listens."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def cannot_listen(host: str, port: int) -> OSError | None:
    """Return the error that listening on `host` and `port` causes, or None.

    It tries every address of the name, as a server that listens on a name does.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in addresses:
            _listen(socket.socket(family, kind, protocol), address)
    except OSError as error:
        return error
    return None


def next_free_port(host: str, port: int) -> int | None:
    """Return the first free port of the hundred above `port`, or None."""
    candidates = range(port + 1, min(port + 101, 65536))
    return next((candidate for candidate in candidates if cannot_listen(host, candidate) is None), None)


def _listen(listener: socket.socket, address: tuple[object, ...]) -> None:
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        if listener.family == socket.AF_INET6:
            with suppress(OSError):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen()  # only this fails where another socket has the port without listening yet
