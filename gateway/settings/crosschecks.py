"""What values of different keys have to say to each other. One list of checks; each sees typed settings."""

import ssl
from collections.abc import Callable, Iterator, Mapping

from gateway.settings.backend_checks import backend_findings
from gateway.settings.document import Settings
from gateway.settings.faults import Finding
from gateway.settings.naming import naming_findings
from gateway.settings.not_yet import not_yet_findings


def findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that is wrong between values, in the order of the file."""
    for check in CHECKS:
        yield from check(settings)
    yield from backend_findings(settings, environ)
    yield from not_yet_findings(settings)


def _entrance(settings: Settings) -> Iterator[Finding]:
    server = settings.server
    if settings.anonymous and not server.is_loopback and not server.allow_anonymous:
        yield Finding(
            ("server", "host"),
            "lets other machines in, and without a [[tenant]] nobody needs a key: add tenants, "
            'listen on "127.0.0.1", or set allow_anonymous = true',
            reads=(("tenant",), ("server", "allow_anonymous")),
        )


def _tls(settings: Settings) -> Iterator[Finding]:
    cert, key = settings.server.tls_cert, settings.server.tls_key
    places = (("server", "tls_cert"), ("server", "tls_key"))
    if cert and key:
        problem = _certificate_problem(cert, key)
        if problem:
            yield Finding(places[0], problem, reads=places)
    elif cert or key:
        yield Finding(places[1 if cert else 0], "is needed: tls_cert and tls_key go together", reads=places)


def _certificate_problem(cert: str, key: str) -> str | None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: b"")
    except ssl.SSLError:
        return "and tls_key are not a PEM certificate and its own key, without a password"
    except OSError as unreadable:
        return f"or tls_key cannot be read: {unreadable.strerror}"
    return None


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
    naming_findings,
)
