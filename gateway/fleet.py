"""All backends together: built from the settings, watched, and routed to by admission."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog

from admission import AdmissionQueue, Lease, Limiter, QueueLimits, TenantLimits
from gateway.backend import Backend, BackendState
from gateway.buffers import BufferBudget
from gateway.catalogue import Catalogue
from gateway.errors import CapacityError, GatewayError
from gateway.live import LiveAnswers
from gateway.monitor import Monitor
from gateway.settings import Backend as BackendSettings
from gateway.settings import Settings, Tenant

__all__ = ["Fleet"]

log = structlog.stdlib.get_logger(__name__)


class Fleet:
    """Belongs to the running event loop. `start` begins watching, `stop` leaves nothing behind."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        admission = settings.admission
        limits = QueueLimits(
            max_queue=admission.max_queue,
            max_queue_per_tenant=admission.max_queue
            if settings.anonymous
            else admission.max_queue_per_tenant,
            max_queue_bytes=admission.max_queue_bytes,
            queue_timeout_s=admission.queue_timeout_s,
        )
        self.queue = AdmissionQueue(limits, asyncio.get_running_loop())
        self.scheduler = self.queue.scheduler
        self.tenants = tuple(tenant.name for tenant in settings.tenants)
        self.live = LiveAnswers()
        self.buffers = BufferBudget(settings.streaming.stream_buffers_total_bytes)
        self.limiter = Limiter(asyncio.get_running_loop().time, lambda: datetime.now(UTC))
        self.limiter.configure({tenant.name: _limits(tenant) for tenant in settings.tenants})
        self.scheduler.set_weights({tenant.name: tenant.weight for tenant in settings.tenants})
        self.scheduler.set_concurrency(
            {tenant.name: tenant.max_concurrent for tenant in settings.tenants if tenant.max_concurrent}
        )
        self.backends = {
            entry.name: _backend(entry, environ, settings.timeouts.connect_s) for entry in settings.backends
        }
        self.catalogue = Catalogue(settings.models, self.backends.values())
        self.monitors = {
            entry.name: Monitor(
                self.backends[entry.name],
                interval_s=entry.health_interval_s,
                quarantine_max_s=admission.quarantine_max_s,
                ask_models=not entry.models,
                on_slots=self.scheduler.dispatch,
            )
            for entry in settings.backends
        }
        for entry in settings.backends:
            backend = self.backends[entry.name]
            backend.on_change = self._changed
            backend.pool.on_quarantine = self.monitors[entry.name].nudge
            if entry.models:
                self.catalogue.fix(backend, entry.models)
        self._reroute()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.backends.values())!r}>"

    @property
    def ready(self) -> bool:
        return any(backend.state is BackendState.READY for backend in self.backends.values())

    def start(self) -> None:
        for monitor in self.monitors.values():
            monitor.start()

    def drain(self) -> None:
        """Refuse what waits and what comes from now on; what runs goes on."""
        self.scheduler.drain()

    def cut(self) -> None:
        """End what still runs, with an error that its client can read."""
        self.live.cut(CapacityError(503, "draining", "the gateway is shutting down"))

    async def stop(self) -> None:
        self.queue.close()
        for monitor in self.monitors.values():
            await monitor.stop()
        for backend in self.backends.values():
            await backend.aclose()

    def backend_of(self, pool_name: str) -> Backend:
        return self.backends[pool_name]

    def may_retry(self, error: GatewayError, lease: Lease) -> bool:
        """Whether the request may be tried once more after this error: nothing of it came, none was begun.

        A backend that is loading is waited for; one that is not there is left, if there is another.
        """
        if not error.retry_safe or lease.delivered:
            return False
        backend = self.backends[lease.pool_name]
        loading = error.status == 503
        if backend.state is BackendState.READY:
            backend.become(BackendState.LOADING if loading else BackendState.UNREACHABLE, error.message)
        model = self.catalogue.models.get(lease.demand.model)
        others = model.backends if model is not None else []
        return loading or any(other.state is BackendState.READY for other in others)

    def _changed(self, backend: Backend) -> None:
        log.info("backend", backend=backend.name, state=backend.state.value, slots=backend.pool.total)
        self._reroute()

    def _reroute(self) -> None:
        self.catalogue.rebuild()
        self.scheduler.route(
            {
                model.name: [backend.pool for backend in model.backends]
                for model in self.catalogue.models.values()
            }
        )


def _limits(tenant: Tenant) -> TenantLimits:
    return TenantLimits(tenant.requests_per_minute, tenant.tokens_per_minute, tenant.tokens_per_day)


def _backend(entry: BackendSettings, environ: Mapping[str, str], connect_timeout_s: float) -> Backend:
    assert entry.base_url is not None, "a backend with a command is given its URL when its process starts"
    return Backend(
        entry.name,
        entry.base_url,
        api_key=entry.api_key(environ),
        unix_socket=entry.unix_socket,
        slots=entry.slots,
        shared=entry.shared,
        connect_timeout_s=connect_timeout_s,
    )
