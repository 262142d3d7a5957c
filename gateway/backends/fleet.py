"""All backends together: built from the settings, watched, and routed to by admission."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from slotgate.admission import Lease, Limiter, QueueLimits, TenantLimits
from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.metrics import Metrics
from slotgate.gateway.backends.affinity import Affinity
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.models import ModelCatalogue
from slotgate.gateway.backends.monitor import Monitor
from slotgate.gateway.backends.prompt_sizes import PromptSizes
from slotgate.gateway.backends.slot_eraser import SlotEraser
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.queue import AdmissionQueue
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import CapacityError, GatewayError
from slotgate.gateway.settings import BackendSettings, Settings, TenantSettings, isolating
from slotgate.gateway.streaming.buffer_budget import BufferBudget
from slotgate.gateway.telemetry.log_limiter import LogLimiter
from slotgate.gateway.telemetry.tracing import Trace
from slotgate.gateway.usage import Usage

__all__ = ["Fleet"]

log = structlog.stdlib.get_logger(__name__)


class Fleet:
    """Belongs to the running event loop. `start` begins watching, `stop` leaves nothing behind."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str] = os.environ, usage: Usage | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._environ = environ
        self._entries: dict[str, BackendSettings] = {}
        self.queue = AdmissionQueue(_queue_limits(settings), loop)
        self.scheduler = self.queue.scheduler
        self.limiter = Limiter(loop.time, lambda: datetime.now(UTC))
        self.live = InFlight()
        self.history = History()
        self.log_limiter = LogLimiter()
        self.affinity = Affinity()
        self.prompt_sizes = PromptSizes()
        self.buffers = BufferBudget(settings.streaming.stream_buffers_total_bytes)
        self.tenants: tuple[str, ...] = ()
        self.backends: dict[str, Backend] = {}
        self.monitors: dict[str, Monitor] = {}
        self._cleaners: dict[str, SlotEraser] = {}
        """Of the backends whose slots are numbered; none of them is ever retired, for they are our own."""
        self._retired: set[Backend] = set()
        """Backends that the configuration no longer has, and whose last requests still run."""
        self._serving: dict[str, Backend] = {}
        """By the name of their pool, the retired ones included."""
        self._pools = itertools.count(1)
        self.catalogue = ModelCatalogue()
        self.wishes: dict[str, float] = {}
        """Models that somebody needs who does not wait in the queue, and when this was said last."""
        self._closing: set[asyncio.Task[None]] = set()
        self.on_drain: Callable[[], None] = _nobody_looks
        """Called when the gateway begins to stop: those who only look are not waited for."""
        self._started = False
        self.trace: Trace | None = None
        """Told of every request, where traces are wanted; set before the application is built."""
        self.metrics = Metrics(self.scheduler, self.live, lambda: list(self.backends.values()))
        self.usage = usage or Usage()
        self.on_ended: Callable[[RequestContext], None] = lambda _: None
        """Told of every request that has ended, after all others. Must not raise."""
        self.apply(settings)
        self.limiter.restore(self.usage.day, self.usage.tokens_today)

    def apply(self, settings: Settings) -> None:
        """Go on with these settings. A backend that is another one now is replaced: what runs on the old one
        ends there. One that is where it was keeps its slots: those that are taken there stay taken.
        """
        self.scheduler.limits = _queue_limits(settings)
        self.scheduler.set_weights({tenant.name: tenant.weight for tenant in settings.tenants})
        self.scheduler.set_concurrency(
            {tenant.name: tenant.max_concurrent for tenant in settings.tenants if tenant.max_concurrent}
        )
        self.limiter.configure({tenant.name: _limits(tenant) for tenant in settings.tenants})
        self.tenants = tuple(tenant.name for tenant in settings.tenants)
        self.buffers.total_bytes = settings.streaming.stream_buffers_total_bytes
        wanted = {entry.name: entry for entry in settings.backends}
        for name in [name for name, entry in self._entries.items() if not _same(entry, wanted.get(name))]:
            self._retire(name)
        for name, entry in wanted.items():
            if name not in self._entries:
                self._add(entry, settings)
            else:
                self._adjust(entry, settings)
        self.backends = {name: self.backends[name] for name in wanted}
        self.catalogue.configure(settings.models)
        self._reroute()

    def _add(self, entry: BackendSettings, settings: Settings) -> None:
        pool_name = entry.name if entry.name not in self._serving else f"{entry.name}#{next(self._pools)}"
        backend = _backend(entry, pool_name, self._environ, settings.timeouts.connect_s)
        monitor = Monitor(
            backend,
            interval_s=entry.health_interval_s,
            quarantine_max_s=settings.admission.quarantine_max_s,
            ask_models=not entry.models,
            on_slots=self.scheduler.dispatch,
        )
        backend.on_change = self._changed
        backend.on_restart = lambda: self.affinity.forget(pool_name)
        backend.pool.on_quarantine = monitor.nudge
        self._entries[entry.name] = entry
        self.backends[entry.name] = self._serving[pool_name] = backend
        self.monitors[entry.name] = monitor
        self.catalogue.add(backend, entry.models)
        if entry.name in isolating(settings):
            backend.pool.numbered = True
            self._cleaners[entry.name] = SlotEraser(backend, self.scheduler.dispatch)
        if self._started:
            monitor.start()

    def _adjust(self, entry: BackendSettings, settings: Settings) -> None:
        backend, monitor = self.backends[entry.name], self.monitors[entry.name]
        backend.adjust(
            api_key=entry.api_key(self._environ),
            slots=entry.slots,
            shared=entry.shared,
            kv_unified=entry.kv_unified,
            connect_timeout_s=settings.timeouts.connect_s,
        )
        monitor.adjust(
            interval_s=entry.health_interval_s, quarantine_max_s=settings.admission.quarantine_max_s
        )
        self._entries[entry.name] = entry
        self.catalogue.add(backend, entry.models)

    def _retire(self, name: str) -> None:
        backend, monitor = self.backends.pop(name), self.monitors.pop(name)
        del self._entries[name]
        self.catalogue.remove(backend)
        backend.pool.admitting = False
        backend.on_change = lambda _: None
        self._retired.add(backend)

        def idle() -> None:
            task = asyncio.get_running_loop().create_task(self._close(backend, monitor))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        if backend.pool.leases:
            backend.pool.on_idle = idle
        else:
            idle()

    async def _close(self, backend: Backend, monitor: Monitor) -> None:
        """Its last request has ended: what its answer still says to the client does not need it."""
        self._retired.discard(backend)
        self._serving.pop(backend.pool.name, None)
        self.affinity.forget(backend.pool.name)
        await monitor.stop()
        await backend.aclose()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.backends.values())!r}>"

    @property
    def ready(self) -> bool:
        """Whether a backend is ready, or can be loaded for whoever asks."""
        return any(backend.can_serve for backend in self.backends.values())

    def start(self) -> None:
        self._started = True
        for watcher in self._watchers:
            watcher.start()

    @property
    def _watchers(self) -> list[Monitor | SlotEraser]:
        return [*self.monitors.values(), *self._cleaners.values()]

    def drain(self) -> None:
        """Refuse what waits and what comes from now on; what runs goes on."""
        self.scheduler.drain()
        self.on_drain()

    def cut(self) -> None:
        """End what still runs, with an error that its client can read."""
        self.live.cut(CapacityError(503, "draining", "the gateway is shutting down"))

    async def stop(self) -> None:
        self.queue.close()
        for watcher in self._watchers:
            await watcher.stop()
        for backend in [*self.backends.values(), *self._retired]:
            await backend.aclose()
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)
        self.log_limiter.flush()

    def backend_of(self, pool_name: str) -> Backend:
        return self._serving[pool_name]

    def ended(self, context: RequestContext) -> None:
        """A request has ended: what is kept of it, and counted."""
        self.history.put(context)
        self.metrics.observe(context)
        self.usage.note(context)
        self.on_ended(context)

    def wish(self, model: str) -> None:
        """Somebody needs this model without a slot of it: it should be loaded where that can be."""
        self.wishes[model] = asyncio.get_running_loop().time()
        self.queue.on_change()

    def may_retry(self, error: GatewayError, lease: Lease) -> bool:
        """Whether the request may be tried once more after this error: nothing of it came, none was begun.

        A backend that is loading is waited for; one that is not there is left, if there is another.
        """
        if not error.retry_safe or lease.delivered:
            return False
        backend = self._serving.get(lease.pool_name)  # it may have been retired, and closed by now
        loading = error.status == 503 or (backend is not None and backend.state.is_coming)
        if backend is not None and backend.state is BackendState.READY:
            backend.observe(BackendState.LOADING if loading else BackendState.FAILED, error.message)
        model = self.catalogue.models.get(lease.demand.model)
        others = model.backends if model is not None else []
        return loading or any(other.state is BackendState.READY for other in others)

    def _changed(self, backend: Backend) -> None:
        pool = backend.pool
        context = {"context": pool.context} if pool.context else {}
        log.info("backend", backend=backend.name, state=backend.state.value, slots=pool.total, **context)
        self._reroute()

    def _reroute(self) -> None:
        self.catalogue.rebuild()
        self.scheduler.route(
            {
                model.name: [backend.pool for backend in model.backends if not backend.lost]
                for model in self.catalogue.models.values()
            }
        )


def _nobody_looks() -> None:
    """Nobody is shown what happens."""


def _queue_limits(settings: Settings) -> QueueLimits:
    admission = settings.admission
    return QueueLimits(
        max_queue=admission.max_queue,
        max_queue_per_tenant=admission.max_queue if settings.anonymous else admission.max_queue_per_tenant,
        max_queue_bytes=admission.max_queue_bytes,
        queue_timeout_s=admission.queue_timeout_s,
        affinity_max_wait_s=admission.affinity_max_wait_ms / 1000,
    )


def _same(before: BackendSettings, after: BackendSettings | None) -> bool:
    """Whether both are one llama-server, and its models are found out in the same way."""
    return (
        after is not None
        and (before.url, before.command) == (after.url, after.command)
        and bool(before.models) == bool(after.models)
    )


def _limits(tenant: TenantSettings) -> TenantLimits:
    return TenantLimits(tenant.requests_per_minute, tenant.tokens_per_minute, tenant.tokens_per_day)


def _backend(
    entry: BackendSettings, pool_name: str, environ: Mapping[str, str], connect_timeout_s: float
) -> Backend:
    assert entry.base_url is not None, "a backend with a command is given its URL when its process starts"
    return Backend(
        entry.name,
        entry.base_url,
        api_key=entry.api_key(environ),
        unix_socket=entry.unix_socket,
        slots=entry.slots,
        shared=entry.shared,
        kv_unified=entry.kv_unified,
        pool_name=pool_name,
        connect_timeout_s=connect_timeout_s,
        start_timeout_s=entry.start_timeout_s,
    )
