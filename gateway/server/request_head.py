"""Checks of a request's head before the application sees it. Pure functions; each may raise `ClientError`."""

from __future__ import annotations

import httptools

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.headers import Headers

__all__ = ["check_size", "check_target", "too_large", "without_upgrade"]

_UPGRADING = (b"upgrade", b"http2-settings")


def check_size(url: bytes, headers: Headers, limit: int) -> None:
    """Refuse a head that is larger than `limit` bytes."""
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ClientError:
    """Return the error for a head that is larger than `limit` bytes."""
    message = f"the request's target and headers are larger than {limit} bytes"
    return ClientError("headers_too_large", message, status=431)


def check_target(url: bytes) -> None:
    """Refuse a target that has no path, or a path that is not ASCII: uvicorn would fail."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        path = None
    if path is None or not path.isascii():
        raise ClientError("invalid_request", "the request's target is not valid")


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the head of the same request, as bytes, without its wish to upgrade.

    A server may always ignore that wish (RFC 9110, 7.8). llhttp stops after a head that asks for an upgrade,
    and uvicorn then runs the request without its body. WebSocket is refused with an error, because such a
    request makes no sense in plain HTTP.
    """
    if method == b"CONNECT":
        raise ClientError("invalid_request", "CONNECT is not supported, because this server is not a proxy")
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        raise ClientError("unknown_path", "this server does not support WebSocket", status=404)
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept = [option for option in options if option.lower() not in _UPGRADING]
            lines.append(b"connection: %s\r\n" % b", ".join(kept) if kept else b"")
        elif name not in _UPGRADING:
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])
