"""Protect a gateway without keys from web pages that use it through a visitor's browser.

A page can make the browser send requests to a loopback address, also under the page's own host name if that
resolves to loopback, and it can post forms without CORS. So without keys the `Host` must be a loopback name
or an allowed one, a foreign `Origin` is refused, and a body must be declared as JSON or multipart. Browsers
send no `Origin` for pictures and scripts, but `Sec-Fetch-Site` says that another site asks. A link that
someone follows is no such request. Public paths are not checked, because orchestrators check health under
any host name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.errors import ClientError

__all__ = ["WebGuard"]


class WebGuard:
    """Refuses requests that a foreign web page may have caused."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        public_paths: frozenset[str],
        allows_links: bool = True,
    ) -> None:
        """`allows_links`: links on pages of other sites may lead here."""
        self._app = app
        self._public = public_paths
        self._allows_links = allows_links
        self._hosts = frozenset(host.lower().rstrip(".") for host in allowed_hosts)
        self._origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._public:
            self._check(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(headers.get("origin"), host)
        self._check_site(method, headers)
        if method == "POST" and _has_body(headers):
            _check_content_type(headers.get("content-type", ""))

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if not _is_loopback(name) and name not in self._hosts:
            message = f"the host {name!r} is not allowed here; see server.allowed_hosts"
            raise ClientError("host_not_allowed", message, status=403, kind="permission_error")

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return
        if origin.partition("://")[2].lower() != host.lower():
            message = f"pages of {origin!r} may not use this gateway; see server.cors_origins"
            raise ClientError("origin_not_allowed", message, status=403, kind="permission_error")

    def _check_site(self, method: str, headers: Headers) -> None:
        """Refuse what a page of another site asks for without an `Origin`."""
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin") or "origin" in headers:
            return
        is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if not (is_link and self._allows_links):
            message = "pages of other sites may not use this gateway; see server.cors_origins"
            raise ClientError("origin_not_allowed", message, status=403, kind="permission_error")


def _check_content_type(value: str) -> None:
    kind = value.partition(";")[0].strip().lower()
    if kind not in ("application/json", "multipart/form-data"):
        message = "content-type must be application/json (or multipart/form-data for files)"
        raise ClientError("unsupported_content_type", message, status=415)


def _has_body(headers: Headers) -> bool:
    """Return True if the request has a body (RFC 9112, 6.3)."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
