"""Trace requests with OpenTelemetry: one span for each request, with three spans inside.

    POST /v1/chat/completions      from the request to the end of its answer; its parent is the client's span
      queue                        from joining the queue to the grant
      upstream                     from asking the backend to its first event, or to the whole answer
      stream                       from the first event to the end

The context of a request has these times anyway. So all spans but the first are made when the request has
ended, and nothing happens per frame. The id of `upstream` is chosen at the start, because the backend gets it
in `traceparent`. Spans wait in a bounded queue for the thread that exports them (`OTEL_BSP_MAX_QUEUE_SIZE`,
2048 by default); spans that do not fit are dropped.

Attributes are names from the configuration and numbers. They have no prompt, no key and no path as the client
wrote it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TraceFlags, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from slotgate.gateway.http.context import RequestContext

__all__ = ["Tracing"]

FLUSH_S = 2.0
"""Longest wait for the export of the last spans when the process ends."""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embedding": "embeddings",
}
"""`gen_ai.operation.name`, from the semantic conventions for generative AI."""
log = structlog.stdlib.get_logger(__name__)
Clock = Callable[[float], int]


class Tracing:
    """Makes and exports the spans."""

    def __init__(self, processor: SpanProcessor) -> None:
        """The `OTEL_…` variables set the sampler and the resource. The default service name is `slotgate`."""
        self._ids = ChosenIds()
        named = Resource.create()
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "slotgate"}))
        self._provider = TracerProvider(resource=named, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("slotgate")
        self._propagator = TraceContextTextMapPropagator()

    def __repr__(self) -> str:
        return f"<Tracing by {self._provider.sampler.get_description()}>"

    @classmethod
    def exporting(cls) -> Tracing:
        """Export in batches to the collector that the environment names."""
        return cls(BatchSpanProcessor(OTLPSpanExporter()))

    def begin(self, scope: Scope, context: RequestContext) -> Callable[[], None]:
        """Start the span of a request.

        Call the returned function when the request has ended. Neither raises.
        """
        clock = _wall_clock()
        try:
            span, upstream_id = self._begun(scope, context, clock)
        except Exception as error:
            log.warning("request not traced", error=repr(error))
            return _nothing

        def end() -> None:
            try:
                if span.is_recording():
                    name = f"{scope['method']} {context.path}".strip()
                    self._complete(span, upstream_id, name, context, clock)
            except Exception as error:
                log.warning("request not traced", id=context.id, error=repr(error))

        return end

    async def flush(self) -> None:
        """Export the last spans and stop. Wait at most `FLUSH_S` for the thread that does it."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the export took longer than `FLUSH_S`, and the loop is closed
                return

        threading.Thread(target=shut_down, name="last traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S):
                await done.wait()
        except TimeoutError:
            log.warning("traces lost: the collector did not take them in time")

    def _begun(self, scope: Scope, context: RequestContext, clock: Clock) -> tuple[Span, int]:
        names = (b"traceparent", b"tracestate")
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names
        }
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            scope["method"],
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": scope["method"]},
            start_time=clock(context.began_at),
        )
        ours = span.get_span_context()
        upstream_id = self._ids.generate_span_id()
        flags = ours.trace_flags & TraceFlags.SAMPLED
        context.traceparent = b"00-%032x-%016x-%02x" % (ours.trace_id, upstream_id, flags)
        return span, upstream_id

    def _complete(
        self, span: Span, upstream_id: int, name: str, context: RequestContext, clock: Clock
    ) -> None:
        ended = context.ended_at or asyncio.get_running_loop().time()
        first = context.first_output_at
        span.update_name(name)
        span.set_attributes(_attributes(context))
        if (context.final_status or 500) >= 500 or (context.status == 200 and context.code is not None):
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)

        def child(name: str, start: float | None, end: float | None, kind: SpanKind) -> None:
            if start is not None:
                made = self._tracer.start_span(name, context=inside, kind=kind, start_time=clock(start))
                made.end(clock(max(start, ended if end is None else end)))

        child("queue", context.queued_at, context.granted_at, SpanKind.INTERNAL)
        self._ids.chosen = upstream_id
        child("upstream", context.asked_at, first, SpanKind.CLIENT)
        self._ids.chosen = 0
        child("stream", first, ended, SpanKind.INTERNAL)
        span.end(clock(ended))


class ChosenIds(RandomIdGenerator):
    """Generates random span ids, except that `chosen` is the next id if it is set."""

    chosen = 0

    def generate_span_id(self) -> int:
        chosen, self.chosen = self.chosen, 0
        return chosen or super().generate_span_id()


def _attributes(context: RequestContext) -> dict[str, Any]:
    """Attributes by the semantic conventions for HTTP and generative AI; `slotgate.…` for the rest."""
    found: dict[str, Any] = {
        "http.route": context.path or None,
        "http.response.status_code": context.status,
        "error.type": context.code,
        "gen_ai.operation.name": _OPERATIONS.get(context.path),
        "gen_ai.provider.name": "llama.cpp" if context.backend else None,
        "gen_ai.request.model": context.model,
        "gen_ai.usage.input_tokens": context.prompt_tokens or None,
        "gen_ai.usage.output_tokens": context.completion_tokens or None,
        "slotgate.request_id": context.id,
        "slotgate.tenant": context.tenant.name,
        "slotgate.backend": context.backend,
        "slotgate.outcome": context.final_outcome,
        "slotgate.cached_tokens": context.cached_tokens or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _wall_clock() -> Clock:
    """Return a function from seconds of the loop's clock to nanoseconds since 1970.

    All times of a request use the same function, so they keep their order even if the wall clock is set
    meanwhile.
    """
    now, wall = asyncio.get_running_loop().time(), time.time_ns()
    return lambda seconds: wall - round((now - seconds) * 1e9)


def _nothing() -> None:
    """Ends a request that could not be traced."""
