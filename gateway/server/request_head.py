"""Checks of a request's head before the application sees it. Each may raise `ClientError`."""

from __future__ import annotations

import httptools

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.headers import Headers

__all__ = ["check_framing", "check_size", "check_target", "set_host", "too_large", "without_upgrade"]

_VERSIONS = ("1.0", "1.1")
_UPGRADING = (b"upgrade", b"http2-settings")


def check_size(url: bytes, headers: Headers, limit: int) -> None:
    """Refuse a head that is larger than `limit` bytes."""
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ClientError:
    """Return the error for a head that is larger than `limit` bytes."""
    message = f"the request's target and headers are larger than {limit} bytes"
    return ClientError("headers_too_large", message, status=431)


def check_framing(version: str, headers: Headers) -> None:
    """Refuse a message that does not end where HTTP/1.1 says.

    Another version may frame its messages otherwise. A body in another transfer coding than `chunked` would
    be passed on encoded. RFC 9112, 6.1: a server answers 501 to a coding that it does not understand.
    """
    if version not in _VERSIONS:
        message = "this server speaks HTTP/1.1 and HTTP/1.0"
        raise ClientError("unsupported_http_version", message, status=505)
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
    if codings and codings.strip().lower() != b"chunked":
        message = "a request body may have no other transfer coding than chunked"
        raise ClientError("unsupported_transfer_encoding", message, status=501)


def set_host(url: bytes, version: str, headers: Headers) -> None:
    """Let the `Host` header, which the checks of web pages judge, name the host that was asked.

    There must be one, except in HTTP/1.0, and not two (RFC 9112, 3.2). A target in absolute form has a host
    of its own, which counts in place of the header's (3.2.2). `headers` are changed in place.
    """
    given = [index for index, (name, _) in enumerate(headers) if name == b"host"]
    if len(given) > 1 or (not given and version not in ("0.9", "1.0")):
        raise ClientError("invalid_request", "a request must have one Host header")
    if url.startswith((b"/", b"*")) or b"://" not in url:
        return
    host = _host_of(url)
    if given:
        headers[given[0]] = (b"host", host)
    else:
        headers.append((b"host", host))


def _host_of(url: bytes) -> bytes:
    """Return host and port of a target in absolute form."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or not parsed.host or parsed.schema.lower() not in (b"http", b"https"):
        raise ClientError("invalid_request", "the request's target is not valid")
    host = b"[%b]" % parsed.host if b":" in parsed.host else parsed.host
    return host if parsed.port is None else b"%b:%d" % (host, parsed.port)


def check_target(url: bytes) -> bytes:
    """Return the path. Refuse a target that has no path, or a path that is not ASCII: uvicorn would fail."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        path = None
    if path is None or not path.isascii():
        raise ClientError("invalid_request", "the request's target is not valid")
    return bytes(path)


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
