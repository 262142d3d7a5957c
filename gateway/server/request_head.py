"""The head of a request, judged before the application sees it. Pure functions; each raises `ClientError`."""

from __future__ import annotations

import httptools

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.headers import Headers

__all__ = ["check_size", "check_target", "too_large", "without_upgrade"]

_UPGRADING = (b"upgrade", b"http2-settings")


def check_size(url: bytes, headers: Headers, limit: int) -> None:
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ClientError:
    message = f"the request's target and headers are larger than {limit} bytes"
    return ClientError("headers_too_large", message, status=431)


def check_target(url: bytes) -> None:
    """uvicorn fails where the target has no path, or one that is not ASCII."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        path = None
    if path is None or not path.isascii():
        raise ClientError("invalid_request", "the request's target is not valid")


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The head, as bytes, of the same request in plain HTTP/1.1, which a server may always choose.

    RFC 9110, 7.8. llhttp stops behind a head that asks for an upgrade, and uvicorn then runs the request
    without its body. WebSocket is declined in words, since nothing of it makes sense in plain HTTP.
    """
    if method == b"CONNECT":
        raise ClientError("invalid_request", "CONNECT is for proxies")
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        raise ClientError("unknown_path", "nothing here speaks WebSocket", status=404)
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept = [option for option in options if option.lower() not in _UPGRADING]
            lines.append(b"connection: %s\r\n" % b", ".join(kept) if kept else b"")
        elif name not in _UPGRADING:
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])
