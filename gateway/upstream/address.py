"""The address of a backend."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import httpx

__all__ = ["BackendAddress", "LocalAddress"]

LocalAddress = tuple[socket.AddressFamily, str | tuple[str, int]]
"""Family and address of a plain socket on the same machine, where connecting takes no time."""


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """A host and port, or a Unix socket."""

    host: str
    port: int
    tls: bool = False
    unix_socket: str | None = None
    local: LocalAddress | None = None
    """Set if the backend is on this machine and is reached without TLS."""

    @classmethod
    def of(cls, url: httpx.URL, unix_socket: str | None) -> BackendAddress:
        tls = url.scheme == "https"
        port = url.port or (443 if tls else 80)
        local = _loopback(url.host, port) if not tls else None
        if unix_socket is not None:
            local = socket.AF_UNIX, unix_socket
        return cls(url.host, port, tls, unix_socket, local)


def _loopback(host: str, port: int) -> LocalAddress | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return (family, (host, port)) if address.is_loopback else None
