"""The operators' pages and their scripts and styles.

The pages load nothing from other servers and contain no inline scripts or styles. The content security policy
of each answer makes the browser refuse both.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from slotgate.gateway.admin.page_files import PageFile, PageFiles
from slotgate.gateway.http.by_method import unknown_path
from slotgate.gateway.http.context import headers_of
from slotgate.gateway.http.replies import send_whole

__all__ = ["Page", "Redirect", "StaticFile"]

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-cache"),
]


class Page:
    """`GET` of one page."""

    def __init__(self, file: PageFile) -> None:
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send(self._file, scope, send)


class StaticFile:
    """`GET /admin/static/{name}`: a script, style or image."""

    def __init__(self, pages: PageFiles) -> None:
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = self._pages.static(scope["path_params"]["name"])
        if file is None:
            await unknown_path(scope, receive, send)
        else:
            await _send(file, scope, send)


class Redirect:
    """Sends the browser to another path."""

    def __init__(self, location: bytes) -> None:
        self._location = location

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_whole(send, 307, [(b"location", self._location)], b"")


async def _send(file: PageFile, scope: Scope, send: Send) -> None:
    """Send the file, or 304 if the client has this version already (RFC 9110, 13.1.2)."""
    known = headers_of(scope).get(b"if-none-match", b"")
    etags = {etag.strip().removeprefix(b"W/") for etag in known.split(b",")}
    headers = [*_HEADERS, (b"etag", file.etag)]
    if etags & {file.etag, b"*"}:
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_whole(send, 200, [(b"content-type", file.content_type), *headers], file.content)
