"""What Prometheus is told: counters of what has ended, and gauges read when they are asked for.

Labels come from the configuration (tenants, models, backends) or from a fixed list, never from a client:
nobody can make the series grow. Nothing is counted per frame; the time between tokens is the mean of each
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from slotgate.admission import Scheduler
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.http.context import RequestContext

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()
_DURATIONS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_WAITS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
_UPSTREAM_CODES = frozenset(
    {
        "upstream_unreachable",
        "upstream_broken",
        "upstream_truncated",
        "upstream_auth",
        "upstream_error",
        "first_byte_timeout",
        "idle_timeout",
        "total_timeout",
        "no_backend",
    }
)
_OTHER = "other"


class _Series(NamedTuple):
    """Of one tenant with one model: to look them up by their labels takes longer than to count."""

    queued: Histogram
    first: Histogram
    between: Histogram
    prompt: Counter
    cached: Counter
    completion: Counter


class Metrics:
    """Of one gateway; `observe` is told of every request that has ended."""

    def __init__(self, scheduler: Scheduler, live: InFlight, backends: Callable[[], list[Backend]]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._series: dict[tuple[str, str], _Series] = {}
        histogram = partial(Histogram, namespace="slotgate", registry=self.registry)
        counter = partial(Counter, namespace="slotgate", registry=self.registry)
        by_tenant = ("model", "tenant")
        self._duration = histogram(
            "request_duration_seconds",
            "From the request to the end of its answer.",
            (*by_tenant, "outcome"),
            buckets=_DURATIONS_S,
        )
        self._queued = histogram(
            "queue_wait_seconds", "From joining the queue to the grant.", by_tenant, buckets=_WAITS_S
        )
        self._first = histogram(
            "time_to_first_token_seconds",
            "From the request to its first generated output; streams only.",
            by_tenant,
            buckets=_DURATIONS_S,
        )
        self._between = histogram(
            "inter_token_seconds",
            "Mean time between the tokens of a stream.",
            ("model",),
            buckets=_BETWEEN_TOKENS_S,
        )
        self._tokens = counter(
            "tokens",
            "Tokens processed: prompt (cached ones included), cached, completion.",
            (*by_tenant, "kind"),
        )
        self._gone = counter(
            "client_disconnects", "Clients that left before the end of their answer.", ("phase",)
        )
        self._upstream = counter("upstream_errors", "Answers that a backend failed.", ("code",))
        self._rejected = counter("rejections", "Requests refused by admission or a limit.", ("code",))
        self.registry.register(_Now(scheduler, live, backends))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def __repr__(self) -> str:
        return f"<Metrics {len(list(self.registry.collect()))} families>"

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def observe(self, context: RequestContext) -> None:
        """Requests that asked for no model (pages, health, status) are not counted."""
        if context.model is None or context.duration_s is None:
            return
        model, tenant = context.model, context.tenant.name
        series = self._series.get((model, tenant)) or self._new_series(model, tenant)
        self._duration.labels(model, tenant, context.final_outcome).observe(context.duration_s)
        if context.queue_s is not None:
            series.queued.observe(context.queue_s)
        if context.first_output_s is not None:
            series.first.observe(context.first_output_s)
        self._count_tokens(context, series)
        if context.outcome in ("client_gone", "client_stalled"):
            self._gone.labels(_phase(context)).inc()
        if context.code is not None:
            self._count_failure(context)

    def _new_series(self, model: str, tenant: str) -> _Series:
        """As many as there are models and tenants."""
        series = self._series[model, tenant] = _Series(
            self._queued.labels(model, tenant),
            self._first.labels(model, tenant),
            self._between.labels(model),
            *(self._tokens.labels(model, tenant, kind) for kind in ("prompt", "cached", "completion")),
        )
        return series

    def _count_tokens(self, context: RequestContext, series: _Series) -> None:
        series.prompt.inc(context.prompt_tokens)
        series.cached.inc(context.cached_tokens)
        series.completion.inc(context.completion_tokens)
        first, last = context.first_output_at, context.ended_at
        if first is not None and last is not None and context.completion_tokens > 1:
            between = (last - first) / (context.completion_tokens - 1)
            series.between.observe(between)

    def _count_failure(self, context: RequestContext) -> None:
        if context.code in _UPSTREAM_CODES:
            self._upstream.labels(context.code).inc()
        elif context.status in (429, 503):
            self._rejected.labels(context.code).inc()
        elif context.answered_at is not None:
            self._upstream.labels(_OTHER).inc()


class _Now(Collector):
    """The state of slots, queue and backends at the moment of the question."""

    def __init__(self, scheduler: Scheduler, live: InFlight, backends: Callable[[], list[Backend]]) -> None:
        self._scheduler = scheduler
        self._live = live
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily(
            "slotgate_slots", "Slots of a backend by what they do.", labels=("backend", "state")
        )
        quarantined = GaugeMetricFamily(
            "slotgate_quarantined_slots", "Slots that are not known to be idle.", labels=("backend",)
        )
        states = GaugeMetricFamily(
            "slotgate_backend_state", "1 for the state that a backend is in.", labels=("backend", "state")
        )
        for backend in self._backends():
            status = backend.pool.status(backend.pool.idle_since)
            for state in ("idle", "leased", "quarantined", "foreign"):
                slots.add_metric((backend.name, state), getattr(status, state))
            quarantined.add_metric((backend.name,), status.quarantined)
            for each in BackendState:
                states.add_metric((backend.name, each.value), float(backend.state is each))
        yield from (slots, quarantined, states)
        queue = self._scheduler.status()
        depth = GaugeMetricFamily(
            "slotgate_queue_depth", "Requests that wait for a slot.", labels=("tenant",)
        )
        for tenant, count in queue.by_tenant.items():
            depth.add_metric((tenant,), count)
        if not queue.by_tenant:
            depth.add_metric(("",), 0)
        yield depth
        yield GaugeMetricFamily("slotgate_queue_oldest_seconds", "The longest wait so far.", queue.oldest_s)
        leases = GaugeMetricFamily("slotgate_leases", "Live leases.", labels=("tenant",))
        for tenant, count in self._scheduler.leases_by_tenant.items():
            leases.add_metric((tenant,), count)
        if not self._scheduler.leases:
            leases.add_metric(("",), 0)
        yield leases
        yield GaugeMetricFamily(
            "slotgate_requests_in_flight",
            "Requests at the endpoints that take a slot.",
            len(self._live.contexts),
        )


def _phase(context: RequestContext) -> str:
    if context.granted_at is None:
        return "queued"
    return "prefill" if context.first_output_at is None and context.stream else "answer"
