"""Checks that compare several settings. `CHECKS` lists them; each gets settings that are already typed."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping

from slotgate.gateway.settings.backend_checks import backend_findings
from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Finding
from slotgate.gateway.settings.isolation import isolation_findings
from slotgate.gateway.settings.naming import naming_findings
from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.unsupported import unsupported_findings
from slotgate.gateway.settings.wording import shown

__all__ = ["findings"]


def findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    for check in CHECKS:
        yield from check(settings)
    yield from backend_findings(settings, environ)
    yield from unsupported_findings(settings)


def _entrance(settings: Settings) -> Iterator[Finding]:
    server = settings.server
    if settings.anonymous and not server.is_loopback and not server.allow_anonymous:
        yield Finding(
            ("server", "host"),
            "can be reached from other machines, and without a [[tenant]] no key is needed: define a tenant, "
            'listen on "127.0.0.1", or set allow_anonymous = true',
            reads=(("tenant",), ("server", "allow_anonymous")),
        )


def _tls(settings: Settings) -> Iterator[Finding]:
    cert, key = settings.server.tls_cert, settings.server.tls_key
    at_cert, at_key = ("server", "tls_cert"), ("server", "tls_key")
    if not cert and not key:
        return
    if not cert or not key:
        yield Finding(
            at_key if cert else at_cert,
            "is needed: set both tls_cert and tls_key",
            (at_cert, at_key),
        )
        return
    unreadable = [*_unreadable(at_cert, cert), *_unreadable(at_key, key)]
    yield from unreadable
    if not unreadable and not _is_pair(cert, key):
        yield Finding(at_cert, "and tls_key must be a PEM certificate and its key, without a password")


def _unreadable(loc: Loc, path: str) -> Iterator[Finding]:
    try:
        with open(path, "rb"):
            pass
    except OSError as refused:
        yield Finding(loc, f"cannot be read: {refused.strerror}: {shown(path)}")


def _is_pair(cert: str, key: str) -> bool:
    try:
        # Without a password here, OpenSSL would ask the terminal for the password of a file that has one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError):
        return False
    return True


def _buffers(settings: Settings) -> Iterator[Finding]:
    streaming = settings.streaming
    if streaming.stream_buffer_bytes > streaming.stream_buffers_total_bytes:
        yield Finding(
            ("streaming", "stream_buffer_bytes"),
            f"must be at most stream_buffers_total_bytes ({streaming.stream_buffers_total_bytes}), "
            f"not {streaming.stream_buffer_bytes}",
            reads=(("streaming", "stream_buffers_total_bytes"),),
        )


def _token_limits(settings: Settings) -> Iterator[Finding]:
    for index, tenant in enumerate(settings.tenants):
        default, limit = tenant.max_tokens_default, tenant.max_tokens_limit
        if default and limit and default > limit:
            yield Finding(
                ("tenant", index, "max_tokens_default"),
                f"must be at most max_tokens_limit ({limit}), not {default}",
                reads=(("tenant", index, "max_tokens_limit"),),
            )


CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _entrance,
    _tls,
    _buffers,
    _token_limits,
    isolation_findings,
    naming_findings,
)
