"""Switch tracing on or off by OpenTelemetry's own environment variables.

Tracing is on if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` names a collector,
unless `OTEL_SDK_DISABLED` is true or `OTEL_TRACES_EXPORTER` is none. `telemetry/otel.py` makes the spans.
Only this module imports that one, and only if tracing is on. Otherwise OpenTelemetry is not loaded, and
requests take no time for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import structlog
from starlette.types import Scope

from slotgate.gateway.http.context import RequestContext

__all__ = ["BeginTrace", "is_configured", "traced"]

BeginTrace = Callable[[Scope, RequestContext], Callable[[], None]]
"""Called when a request begins. The function that it returns is called when the request has ended."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
log = structlog.stdlib.get_logger(__name__)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return True if tracing is on (OpenTelemetry specification, "General SDK configuration")."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    return exporters != "none" and any(environ.get(name) for name in _ENDPOINTS)


@asynccontextmanager
async def traced(environ: Mapping[str, str]) -> AsyncIterator[BeginTrace | None]:
    """Yield the function that begins the trace of a request, or None if tracing is off.

    Export the rest at the end.
    """
    if not is_configured(environ):
        yield None
        return
    variable = next(name for name in _ENDPOINTS if environ.get(name))
    collector = urlsplit(environ[variable])
    if collector.scheme not in ("http", "https") or not collector.hostname:
        log.warning("no traces: the endpoint is not a URL such as http://collector:4318", variable=variable)
        yield None
        return
    try:
        from slotgate.gateway.telemetry.otel import Tracing
    except ModuleNotFoundError as missing:
        log.warning("no traces: the extra `otel` is not installed", missing=missing.name)
        yield None
        return
    tracing = Tracing.exporting()
    log.info("tracing", collector=collector.hostname)  # the rest of a URL may hold a password
    try:
        yield tracing.begin
    finally:
        await tracing.flush()
