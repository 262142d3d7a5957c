"""The Prometheus metrics: counters and histograms of ended requests, and gauges read at each scrape.

Labels come from the configuration (tenants, models, backends) or from a fixed list. None comes from a client,
so no client can create new series. Nothing is counted per frame: the time between tokens is a stream's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from slotgate.admission import Scheduler
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.retries import RetryCounts
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
    """The series of one tenant and model. Looking them up by label each time takes longer than counting."""

    queued: Histogram
    first: Histogram
    between: Histogram
    prompt: Counter
    cached: Counter
    completion: Counter


class Metrics:
    """The metrics of one gateway. `observe` must be called for every request that has ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        in_flight: InFlight,
        backends: Callable[[], list[Backend]],
        retries: RetryCounts,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._series: dict[tuple[str, str], _Series] = {}
        histogram = partial(Histogram, namespace="slotgate", registry=self.registry)
        counter = partial(Counter, namespace="slotgate", registry=self.registry)
        by_tenant = ("model", "tenant")
        self._duration = histogram(
            "request_duration_seconds",
            "Time from the request to the end of its answer.",
            (*by_tenant, "outcome"),
            buckets=_DURATIONS_S,
        )
        self._queued = histogram(
            "queue_wait_seconds",
            "Time from joining the queue to the grant of a slot.",
            by_tenant,
            buckets=_WAITS_S,
        )
        self._first = histogram(
            "time_to_first_token_seconds",
            "Time from the request to its first generated token; streams only.",
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
            "client_disconnects", "Clients that left before their answer was complete.", ("phase",)
        )
        self._upstream = counter("upstream_errors", "Requests that failed because of a backend.", ("code",))
        self._rejected = counter("rejections", "Requests refused by admission or a limit.", ("code",))
        self.registry.register(_CurrentState(scheduler, in_flight, backends))
        self.registry.register(_RetryCounts(retries))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def __repr__(self) -> str:
        return f"<Metrics {len(list(self.registry.collect()))} families>"

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def observe(self, context: RequestContext) -> None:
        """Count an ended request. Requests without a model (pages, health, status) are not counted.

        Of requests that were refused before their body was read, only the refusal is.
        """
        if context.model is None or context.duration_s is None:
            if context.code is not None and context.status in (429, 503):
                self._count_failure(context)
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
        """Create the series of a model and tenant. Their number is bounded by the configuration."""
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


class _CurrentState(Collector):
    """The gauges: the state of slots, queue and backends at the moment of the scrape."""

    def __init__(
        self, scheduler: Scheduler, in_flight: InFlight, backends: Callable[[], list[Backend]]
    ) -> None:
        self._scheduler = scheduler
        self._in_flight = in_flight
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily(
            "slotgate_slots", "Slots of a backend by state.", labels=("backend", "state")
        )
        quarantined = GaugeMetricFamily(
            "slotgate_quarantined_slots", "Slots that are not known to be idle.", labels=("backend",)
        )
        unverified = CounterMetricFamily(
            "slotgate_slots_freed_unverified",
            "Abandoned slots that were given out again although /slots could not be read.",
            labels=("backend",),
        )
        states = GaugeMetricFamily(
            "slotgate_backend_state",
            "1 for the current state of a backend, 0 for all others.",
            labels=("backend", "state"),
        )
        for backend in self._backends():
            status = backend.pool.status(backend.pool.idle_since)  # any time will do: no age is read here
            for state in ("idle", "leased", "quarantined", "foreign"):
                slots.add_metric((backend.name, state), getattr(status, state))
            quarantined.add_metric((backend.name,), status.quarantined)
            unverified.add_metric((backend.name,), backend.pool.unverified)
            for label in dict.fromkeys(state.label for state in BackendState):
                states.add_metric((backend.name, label), float(backend.state.label == label))
        yield from (slots, quarantined, unverified, states)
        queue = self._scheduler.status()
        depth = GaugeMetricFamily("slotgate_queue_depth", "Requests waiting for a slot.", labels=("tenant",))
        for tenant, count in queue.by_tenant.items():
            depth.add_metric((tenant,), count)
        if not queue.by_tenant:
            depth.add_metric(("",), 0)
        yield depth
        yield GaugeMetricFamily(
            "slotgate_queue_oldest_seconds",
            "Time that the oldest waiting request has waited.",
            queue.oldest_s,
        )
        leases = GaugeMetricFamily("slotgate_leases", "Live leases.", labels=("tenant",))
        for tenant, count in self._scheduler.leases_by_tenant.items():
            leases.add_metric((tenant,), count)
        if not self._scheduler.leases:
            leases.add_metric(("",), 0)
        yield leases
        yield GaugeMetricFamily(
            "slotgate_requests_in_flight",
            "Live requests at the endpoints that need a slot.",
            len(self._in_flight.contexts),
        )


class _RetryCounts(Collector):
    """The counters of second attempts."""

    def __init__(self, counts: RetryCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        labels = ("backend", "reason")
        made = CounterMetricFamily(
            "slotgate_retries", "Requests that were tried again after a backend failed them.", labels=labels
        )
        withheld = CounterMetricFamily(
            "slotgate_retries_withheld",
            "Requests that were lost when their backend died and were not tried again.",
            labels=labels,
        )
        for family, counts in ((made, self._counts.made), (withheld, self._counts.withheld)):
            for (backend, reason), count in counts.items():
                family.add_metric((backend, reason), count)
        yield from (made, withheld)


def _phase(context: RequestContext) -> str:
    if context.granted_at is None:
        return "queued"
    return "prefill" if context.first_output_at is None and context.stream else "answer"
