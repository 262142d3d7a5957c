"""The state that all requests of a gateway share: the queue, the limits, the requests in flight, the buffers.

It outlives the settings: `apply` changes them, and requests that wait or run keep their places.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from slotgate.admission import BodyBudget, Concurrency, Limiter, QueueLimits, Scheduler, TenantLimits
from slotgate.gateway.backends.answer_sizes import AnswerSizes
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.backends.prompt_sizes import PromptSizes
from slotgate.gateway.forwarding.context_watch import ContextWatch
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.queue import AdmissionQueue
from slotgate.gateway.forwarding.retries import Retries
from slotgate.gateway.http.errors import CapacityError
from slotgate.gateway.settings import Settings, TenantSettings
from slotgate.gateway.streaming.buffer_budget import BufferBudget

__all__ = ["Runtime"]


class Runtime:
    """Belongs to the running event loop. `fleet.start` begins to watch the backends, `stop` ends that."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environ` holds the backends' API keys, under the names that the settings give."""
        loop = asyncio.get_running_loop()
        self.queue = AdmissionQueue(_queue_limits(settings), loop)
        self.scheduler: Scheduler = self.queue.scheduler
        self.limiter = Limiter(loop.time, lambda: datetime.now(UTC))
        self.concurrency = Concurrency(loop.time)
        self.bodies = BodyBudget(settings.admission.max_queue_bytes)
        self.in_flight = InFlight()
        self.mark = secrets.token_hex(8).encode()
        """Marks the requests that this gateway sends, so that it recognises them if they come back."""
        self.buffers = BufferBudget(settings.streaming.stream_buffers_total_bytes)
        self.prompt_sizes = PromptSizes()
        self.answer_sizes = AnswerSizes()
        self.context_watch = ContextWatch(loop, self.in_flight)
        self.tenants: tuple[str, ...] = ()
        """The names of the configured tenants."""
        self._configure(settings)
        self.fleet = Fleet(settings, self.scheduler, environ)
        self.retries = Retries(self.fleet, settings.admission.retry)
        self.context_watch.watch(self.fleet.serving)
        self.queue.subscribe(self.context_watch.changed)

    def __repr__(self) -> str:
        return f"<Runtime {self.scheduler!r} {self.fleet!r}>"

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._configure(settings)
        self.fleet.apply(settings)
        self.retries.policy = settings.admission.retry

    def drain(self) -> None:
        """Refuse all new requests, and those that wait for a slot.

        Requests that run, or wait for their model to be loaded, go on until `cancel_running`.
        """
        self.scheduler.drain()

    def cancel_running(self) -> None:
        """End the requests that still run or wait, with an error that their clients can read."""
        self.scheduler.refuse_waiting()
        self.in_flight.cancel_all(CapacityError(503, "draining", "the gateway is shutting down"))

    async def stop(self) -> None:
        self.queue.close()
        self.context_watch.close()
        await self.fleet.stop()

    def _configure(self, settings: Settings) -> None:
        self.scheduler.limits = _queue_limits(settings)
        self.scheduler.set_weights({tenant.name: tenant.weight for tenant in settings.tenants})
        self.concurrency.max_concurrent = {
            tenant.name: tenant.max_concurrent for tenant in settings.tenants if tenant.max_concurrent
        }
        self.bodies.max_bytes = settings.admission.max_queue_bytes
        self.limiter.configure({tenant.name: _limits(tenant) for tenant in settings.tenants})
        self.tenants = tuple(tenant.name for tenant in settings.tenants)
        self.buffers.total_bytes = settings.streaming.stream_buffers_total_bytes


def _queue_limits(settings: Settings) -> QueueLimits:
    admission = settings.admission
    return QueueLimits(
        max_queue=admission.max_queue,
        max_queue_per_tenant=admission.max_queue if settings.anonymous else admission.max_queue_per_tenant,
        queue_timeout_s=admission.queue_timeout_s,
        batch_queue_timeout_s=admission.batch_queue_timeout_s,
        affinity_max_wait_s=admission.affinity_max_wait_ms / 1000,
    )


def _limits(tenant: TenantSettings) -> TenantLimits:
    return TenantLimits(tenant.requests_per_minute, tenant.tokens_per_minute, tenant.tokens_per_day)
