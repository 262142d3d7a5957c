"""The parts of a running gateway. They are built once and passed on as arguments.

    Runtime (queue, limits, fleet) --> Loader (processes)
                 |                       |
                 +--> Console (operators, live status, pages)
                 +--> History, Metrics, UsageLedger: the observers of ended requests

The application (`application.py`) is built around these parts, and again when the configuration changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping

from slotgate.gateway.admin.console import Console
from slotgate.gateway.admin.history import History
from slotgate.gateway.admin.live_status import LiveStatus
from slotgate.gateway.admin.metrics import Metrics
from slotgate.gateway.admin.page_files import PageFiles
from slotgate.gateway.auth.operators import Operators
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.loader import Loader
from slotgate.gateway.settings import Settings
from slotgate.gateway.telemetry.log_limiter import LogLimiter
from slotgate.gateway.telemetry.tracing import BeginTrace
from slotgate.gateway.usage import UsageLedger

__all__ = ["Composition", "RequestObserver"]

RequestObserver = Callable[[RequestContext], None]
"""Called with every request that has ended. Must not raise."""


class Composition:
    """Belongs to the running event loop. `start` begins all background work, `stop` leaves nothing behind."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str] = os.environ,
        *,
        usage: UsageLedger | None = None,
        trace: BeginTrace | None = None,
        processes: Iterable[LlamaProcess] = (),
        observers: Iterable[RequestObserver] = (),
    ) -> None:
        """`processes` are the llama-servers behind backends of `settings`. `observers` are called last.

        Without `usage` nothing is recorded. Without `trace` no request is traced.
        """
        self.runtime = Runtime(settings, environ)
        self.usage = usage or UsageLedger()
        self.trace = trace
        self.history = History()
        self.log_limiter = LogLimiter()
        fleet, in_flight = self.runtime.fleet, self.runtime.in_flight
        self.metrics = Metrics(
            self.runtime.scheduler,
            in_flight,
            lambda: list(fleet.backends.values()),
            self.runtime.retries.counts,
        )
        self.loader = Loader(settings, fleet, processes, cancel_requests=in_flight.cancel_all)
        self.console = Console(
            Operators(None, asyncio.get_running_loop().time),
            LiveStatus(self.runtime, self.history, self.loader),
            PageFiles(),
        )
        self._observers = (self.history.put, self.metrics.observe, self.usage.note, *observers)
        self.runtime.limiter.restore(self.usage.day, self.usage.tokens_today)

    def __repr__(self) -> str:
        return f"<Composition {self.runtime!r}>"

    def start(self) -> None:
        self.runtime.queue.subscribe(self.loader.changed)
        self.runtime.fleet.start()
        self.loader.start()
        self.console.live_status.start()

    def request_ended(self, context: RequestContext) -> None:
        """Tell all observers of an ended request."""
        for observer in self._observers:
            observer(context)

    def drain(self) -> None:
        """Refuse waiting and new requests, and end the event streams of operators."""
        self.runtime.drain()
        self.console.live_status.close()

    async def stop(self) -> None:
        self.console.live_status.stop()
        self.loader.stop()
        await self.runtime.stop()
        self.log_limiter.flush()
