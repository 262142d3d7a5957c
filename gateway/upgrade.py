"""Requests that ask for another protocol: HTTP/2 in clear text is declined silently, WebSocket in words."""

from __future__ import annotations

from gateway.errors import ClientError

__all__ = ["without_upgrade"]

_HOPS = (b"upgrade", b"http2-settings")


def without_upgrade(method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The head of the same request in plain HTTP/1.1, which a server may always choose (RFC 9110, 7.8).

    llhttp stops behind the head of a request that asks for an upgrade, and uvicorn runs it without its body.
    """
    if method == b"CONNECT":
        raise ClientError("invalid_request", "CONNECT is for proxies")
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        raise ClientError("unknown_path", "nothing here speaks WebSocket", status=404)
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept = [option for option in options if option.lower() not in _HOPS]
            lines.append(b"connection: %s\r\n" % b", ".join(kept) if kept else b"")
        elif name not in _HOPS:
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])
