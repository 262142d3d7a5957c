"""Spans of real requests: in memory, and at a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.telemetry.otel import Tracing
from tests.support.answer import fetch
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.notation import DONE, END, STOP, USE, H, T, answer, chunked, error_body
from tests.support.script import Fin, Gate, Script, Sleep, Stall, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{TRACE_ID}-{PARENT_ID}-01".encode()
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator-canary")]}
TENANTS = [{"name": "team-a", "key_hashes": [hash_key("sg-tenant-canary")]}]
KEY = b"authorization: Bearer sg-tenant-canary"
PAUSED: Script = [
    Sleep(0.05),
    Write(H + chunked(T("a"))),
    Sleep(0.05),
    Write(chunked(T("b"), STOP, USE, DONE) + END),
    Fin(),
]


class Spans:
    """The exported spans by name."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.memory))

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self.memory.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def __getitem__(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.all if span.name == name]
        return found

    async def settled(self, gateway: Gateway, count: int) -> None:
        await gateway.until(lambda: len(self.all) >= count)


@asynccontextmanager
async def traced_gateway(
    fu: ScriptedUpstream,
    spans: Spans,
    **sections: Any,  # noqa: ANN401
) -> AsyncIterator[Gateway]:
    async with fu, running_gateway(settings_for(fu.url, **sections), trace=spans.tracing.begin) as gateway:
        yield gateway


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    return Spans()


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def told(request: ReceivedRequest) -> list[str]:
    return (request.head.get(b"traceparent") or b"").decode().split("-")


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_stream_is_a_span_with_queue_upstream_and_stream_in_it(spans: Spans) -> None:
    fu = ScriptedUpstream(scripts={CHAT: PAUSED})
    async with traced_gateway(fu, spans, server=SERVER, tenant=TENANTS) as gateway:
        answered = await ask(gateway.url, KEY, SAMPLED, b"x-request-id: r-1")
        assert answered.body.endswith(DONE)
        await spans.settled(gateway, 4)
        upstream_was_told = told(fu.generations[0])
        assert [line["trace_id"] for line in gateway.log.of("request")] == [TRACE_ID]
    whole = spans[f"POST {CHAT}"]
    children = [spans["queue"], spans["upstream"], spans["stream"]]
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT_ID
    assert {f"{span.context.trace_id:032x}" for span in spans.all if span.context} == {TRACE_ID}
    assert {f"{span.parent.span_id:016x}" for span in children if span.parent} == {id_of(whole)}
    assert upstream_was_told == ["00", TRACE_ID, id_of(spans["upstream"]), "01"]
    assert [span.kind for span in (whole, *children)] == [
        SpanKind.SERVER,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    ]
    hooks = [moment or 0 for span in children for moment in (span.start_time, span.end_time)]
    assert hooks == sorted(hooks)
    assert (whole.start_time or 0) <= hooks[0]
    assert (whole.end_time or 0) == hooks[-1]
    assert min(hooks[3] - hooks[2], hooks[5] - hooks[4]) > 25_000_000  # two pauses of 50 ms
    assert attributes(whole) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llama.cpp",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "slotgate.request_id": "r-1",
        "slotgate.tenant": "team-a",
        "slotgate.backend": "gpu0",
        "slotgate.outcome": "ok",
    }
    assert whole.resource.attributes["service.name"] == "slotgate"
    assert whole.status.status_code is StatusCode.UNSET


async def test_all_times_of_a_request_are_of_one_clock(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise children could begin before their parent, if the loop's clock is coarse or the other one is
    set.
    """
    then = 10**18
    wall = iter([then, *[then + 3600 * 10**9] * 100])
    monkeypatch.setattr("slotgate.gateway.telemetry.otel.time", SimpleNamespace(time_ns=lambda: next(wall)))
    async with traced_gateway(ScriptedUpstream(scripts={CHAT: PAUSED}), spans) as gateway:
        await ask(gateway.url)
        await spans.settled(gateway, 4)
    times = [moment or 0 for span in spans.all for moment in (span.start_time, span.end_time)]
    assert len(times) == 8
    assert all(abs(moment - then) < 60 * 10**9 for moment in times)


async def test_without_a_parent_a_trace_begins_here_and_the_backend_gets_it(spans: Spans) -> None:
    async with (
        ScriptedUpstream() as fu,
        running_gateway(settings_for(fu.url), trace=spans.tracing.begin) as gateway,
    ):
        await ask(gateway.url, stream=False)
        await spans.settled(gateway, 3)
        whole = spans[f"POST {CHAT}"]
        assert whole.context is not None
        expected = ["00", f"{whole.context.trace_id:032x}", id_of(spans["upstream"]), "01"]
        assert told(fu.generations[0]) == expected
    assert whole.parent is None
    assert sorted(spans.names) == [
        f"POST {CHAT}",
        "queue",
        "upstream",
    ]  # it was no stream


async def test_a_trace_that_the_client_does_not_sample_is_not_recorded_and_stays_its_trace(
    spans: Spans,
) -> None:
    async with (
        ScriptedUpstream() as fu,
        running_gateway(settings_for(fu.url), trace=spans.tracing.begin) as gateway,
    ):
        await ask(gateway.url, SAMPLED[:-2] + b"00", stream=False)
        version, trace, _, flags = told(fu.generations[0])
    assert (version, trace, flags) == ("00", TRACE_ID, "00")
    assert spans.names == []


@pytest.mark.parametrize(
    "broken", [b"00-1-2-01", b"nonsense", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"]
)
async def test_a_parent_that_is_none_is_no_parent(broken: bytes, spans: Spans) -> None:
    async with (
        ScriptedUpstream() as fu,
        running_gateway(settings_for(fu.url), trace=spans.tracing.begin) as gateway,
    ):
        await ask(gateway.url, b"traceparent: " + broken, stream=False)
        await spans.settled(gateway, 3)
    assert spans[f"POST {CHAT}"].parent is None


async def test_a_refused_request_is_a_span_without_children(spans: Spans) -> None:
    fu = ScriptedUpstream()
    async with traced_gateway(fu, spans, server=SERVER, tenant=TENANTS) as gateway:
        assert (await ask(gateway.url, b"x-api-key: sg-unknown-canary")).status == 401
        assert (await fetch(gateway.url, "GET", "/secret-canary?key=canary", KEY)).status == 404
        assert (await ask(gateway.url, KEY, model="unknown-canary")).status == 404
        await spans.settled(gateway, 3)
    names = ("http.response.status_code", "error.type")
    codes = [(span.name, *(attributes(span)[name] for name in names)) for span in spans.all]
    assert codes == [
        ("POST", 401, "invalid_api_key"),
        ("GET", 404, "unknown_path"),
        (f"POST {CHAT}", 404, "model_not_found"),
    ]
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all)  # clients' own faults
    assert "canary" not in "".join(span.to_json() for span in spans.all)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([Write(answer(500, error_body(500, "bad canary", "server_error")))], "upstream_error"),
        ([Write(H + chunked(T("a"))), Fin()], "upstream_truncated"),
    ],
)
async def test_a_failure_is_marked_before_and_inside_a_stream(
    script: Script, code: str, spans: Spans
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with traced_gateway(fu, spans) as gateway:
        await ask(gateway.url)
        await gateway.until(lambda: f"POST {CHAT}" in spans.names)
    whole = spans[f"POST {CHAT}"]
    assert (whole.status.status_code, attributes(whole)["error.type"]) == (StatusCode.ERROR, code)
    assert "canary" not in "".join(span.to_json() for span in spans.all)


async def test_a_client_that_leaves_is_an_outcome_and_no_error(spans: Spans) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with traced_gateway(fu, spans) as gateway:
        async with await gateway.client() as client:
            await client.post(CHAT, chat("a prompt canary"))
        await spans.settled(gateway, 4)
    whole = spans[f"POST {CHAT}"]
    assert attributes(whole)["slotgate.outcome"] == "client_gone"
    assert whole.status.status_code is StatusCode.UNSET
    assert "canary" not in "".join(span.to_json() for span in spans.all)


async def test_questions_for_health_and_operators_are_not_traced(spans: Spans) -> None:
    fu = ScriptedUpstream()
    async with traced_gateway(fu, spans, server=SERVER, tenant=TENANTS) as gateway:
        for path in ("/health", "/ready", "/metrics", "/admin/status"):
            await fetch(gateway.url, "GET", path, b"authorization: Bearer sg-operator-canary")
    assert spans.names == []


async def test_a_stuck_exporter_stops_no_request() -> None:
    """Its queue is bounded, and spans that do not fit are dropped."""
    go = threading.Event()
    seen: list[ReadableSpan] = []

    class Stuck(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            go.wait(30)
            seen.extend(spans)
            return SpanExportResult.SUCCESS

    tracing = Tracing(
        BatchSpanProcessor(Stuck(), max_queue_size=8, max_export_batch_size=4, schedule_delay_millis=1)
    )
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url), trace=tracing.begin) as gateway:
        answers = [await ask(gateway.url, stream=False) for _ in range(20)]
    assert [each.status for each in answers] == [200] * 20
    go.set()
    await tracing.flush()
    assert 0 < len(seen) <= 16 < 20 * 3


# -- a collector


def spans_at(collector: ScriptedUpstream) -> list[Any]:
    """Return all spans that the collector was sent, decoded from protobuf."""
    found: list[Any] = []
    for request in collector.requests:
        assert request.path == "/v1/traces"
        batch = ExportTraceServiceRequest.FromString(request.body)
        found += [
            span
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    return found


def environment(monkeypatch: pytest.MonkeyPatch, collector: ScriptedUpstream, **more: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    for name, value in more.items():
        monkeypatch.setenv(name, value)


async def test_a_collector_gets_every_span_before_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library alone would wait a minute. SIGTERM sends the rest at once."""
    collector = ScriptedUpstream(lambda _: [Write(answer(200, b"", content_type=b"application/x-protobuf"))])
    async with collector, ScriptedUpstream(scripts={CHAT: PAUSED}) as fu:
        environment(monkeypatch, collector, OTEL_BSP_SCHEDULE_DELAY="60000")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a")
        with_password = collector.url.replace("http://", "http://user:canary@")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", with_password)
        async with served_gateway(tmp_path, backend_table(fu.url)) as served:
            answered = await ask(served.url, SAMPLED, b"x-request-id: r-9")
            assert answered.body.endswith(DONE)
            assert await served.stop() == 0
            await served.says('"tracing"')
            assert "canary" not in served.log.read_text()
        found = {span.name: span for span in spans_at(collector)}
        assert collector.requests[0].head.get(b"x-team") == b"a"
    assert sorted(found) == [f"POST {CHAT}", "queue", "stream", "upstream"]
    assert found["queue"].trace_id.hex() == TRACE_ID
    assert found[f"POST {CHAT}"].parent_span_id.hex() == PARENT_ID


async def test_a_collector_that_does_not_answer_delays_no_stream_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    collector = ScriptedUpstream(lambda _: [gate, Stall()])
    async with collector, ScriptedUpstream(scripts={CHAT: PAUSED}) as fu:
        environment(monkeypatch, collector, OTEL_BSP_SCHEDULE_DELAY="10")
        async with served_gateway(tmp_path, backend_table(fu.url)) as served:
            answers = await asyncio.gather(*(ask(served.url, SAMPLED) for _ in range(4)))
            await collector.until(lambda: collector.requests)
            assert [each.body.endswith(DONE) for each in answers] == [True] * 4
            assert await served.stop(within=8.0) == 0
            await served.says("traces lost")
