"""Watches requests that share one context, so that their leases grow as their answers do.

Requests are granted by their likely need (`admission.shared_context`). While several run beside each other,
this looks every `LOOK_S` at how much of the context each has used. If the context is nearly full, it ends the
request that has outgrown its likely need most. Otherwise llama-server would end all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from slotgate.admission import Lease
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.forwarding.in_flight import Cancellable, InFlight
from slotgate.gateway.http.errors import CapacityError
from slotgate.gateway.streaming.alarm import Alarm

__all__ = ["LOOK_S", "ContextWatch"]

LOOK_S = 0.1
"""A fast server generates about a hundred tokens in this time, less than the part that stays free."""
log = structlog.stdlib.get_logger(__name__)


class ContextWatch:
    """Belongs to one event loop. `changed` is to be called when leases have been granted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, in_flight: InFlight) -> None:
        self._loop = loop
        self._in_flight = in_flight
        self._backends: Iterable[Backend] = ()
        self._alarm = Alarm(loop, self._look)

    def __repr__(self) -> str:
        return f"<ContextWatch of {len(list(self._backends))} backends>"

    def watch(self, backends: Iterable[Backend]) -> None:
        """Watch these backends from now on. The iterable is read at each look."""
        self._backends = backends

    def changed(self) -> None:
        """Look soon if several requests share a context."""
        if self._alarm.at is None and any(_is_shared(backend) for backend in self._backends):
            self._alarm.set(self._loop.time() + LOOK_S)

    def close(self) -> None:
        self._alarm.close()

    def _look(self) -> None:
        answers: dict[Lease, Cancellable] = {}
        for answer, _ in self._in_flight.answers:
            progress = answer.progress()
            for lease, tokens in zip(progress.leases, progress.context_tokens, strict=True):
                if lease.live:
                    answers[lease] = answer
                    lease.grown(tokens)
        for backend in self._backends:
            if _is_shared(backend):
                self._end_one(backend, answers)
        self.changed()

    def _end_one(self, backend: Backend, answers: dict[Lease, Cancellable]) -> None:
        """End the request that has grown most, if the context is nearly full."""
        lease = backend.pool.overgrown()
        if lease is None or lease not in answers:
            return
        log.warning(
            "context nearly full",
            backend=backend.name,
            tenant=lease.demand.tenant,
            used_tokens=lease.used_tokens,
            likely_tokens=lease.likely_tokens,
        )
        message = (
            "the context that all requests of this backend share is full, and this answer is the longest"
        )
        answers[lease].cancel(CapacityError(503, "context_full", message, retry_after_s=5.0))


def _is_shared(backend: Backend) -> bool:
    return bool(backend.pool.context) and len(backend.pool.leases) > 1
