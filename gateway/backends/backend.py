"""A llama-server as the gateway knows it: its address, its slots and its state.

The state follows from `BackendFacts` (see `state.py`). The methods of this class change one fact each,
compute the state anew and tell the observers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import httpx
import structlog

from slotgate.admission import SlotPool
from slotgate.gateway.backends.circuit_breaker import CircuitBreaker, CircuitState
from slotgate.gateway.backends.context_sharing import ContextSharing, ContextSources
from slotgate.gateway.backends.request_builder import RequestBuilder
from slotgate.gateway.backends.scrubber import scrubber
from slotgate.gateway.backends.state import (
    PROCESS_REASONS,
    BackendFacts,
    BackendState,
    IllegalBackendTransitionError,
    LastHealth,
    ProcessState,
    backend_state,
    check_transition,
    with_process,
)
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.request_body import Body
from slotgate.gateway.upstream import UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress

__all__ = ["Backend", "BackendState", "StateObserver", "report_illegal_transition"]

FAILURE_PATIENCE_S = 10.0
"""Requests wait this long for a backend that has failed."""
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""The limit of a backend's own page. /slots of 64 slots is a hundred times smaller."""
log = structlog.stdlib.get_logger(__name__)

StateObserver: TypeAlias = Callable[["Backend"], None]


class Backend:
    """Observers are called synchronously, in the order in which they were added, and must not raise."""

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        api_key: str | None,
        unix_socket: str | None = None,
        slots: int | None = None,
        shared: bool = False,
        kv_unified: bool | None = None,
        pool_name: str = "",
        connect_timeout_s: float = 5.0,
        start_timeout_s: float = 300.0,
        loads_on_request: bool = False,
        on_change: Iterable[StateObserver] = (),
        on_restart: Iterable[StateObserver] = (),
    ) -> None:
        self.name = name
        self.base_url = httpx.URL(base_url)
        self.api_key = api_key
        self._requests = RequestBuilder(self.base_url, api_key)
        self.loads_on_request = loads_on_request
        """True if the gateway loads its process when a request needs it."""
        self._start_timeout_s = start_timeout_s
        address = BackendAddress.of(self.base_url, unix_socket)
        self.transport = UpstreamTransport(address, connect_timeout_s=connect_timeout_s)
        self._control = UpstreamTransport(address, connect_timeout_s=connect_timeout_s, keep_idle=False)
        self.pool = SlotPool(pool_name or name, slots or 0, shared=shared, admitting=False)

        # The state, and the facts that it follows from
        self._facts = BackendFacts()
        self.circuit = CircuitBreaker()
        self.state = backend_state(self._facts)
        self.since = 0.0
        """The time when the label of the state changed last."""
        self.reason = "not asked yet"
        """The result of the last health check in words, or the stage of the process."""
        self.process_failure = ""
        """The reason why its process ended; empty once the next one is ready."""
        self.slots_failure = ""
        """The reason why /slots cannot be read; empty while it can, or was not asked."""
        self.process_changes = 0
        """Counts starts and ends of the process. An answer that was asked of an older process is outdated."""

        # Facts from the configuration or from the backend itself
        self.fixed_slots = slots
        self.context_sources = ContextSources(kv_unified)
        self.sharing: ContextSharing | None = None
        """The conclusion from all of these; None before the first good health check."""
        self.n_ctx: int | None = None
        """Context of one slot, in tokens."""
        self.n_ctx_train: int | None = None
        """The context that its model was trained for, in tokens."""
        self.models: tuple[str, ...] = ()
        """The names of the models that it says it serves."""
        self.model_path: str | None = None
        self.props: dict[str, Any] = {}
        """Its last answer to /props."""
        self.states_usage = True
        """True while its streams state token counts although no usage chunk was asked for."""

        self.on_change: Final[list[StateObserver]] = list(on_change)
        """Observers, called when the state, the number of slots or the shared context has changed."""
        self.on_process_change: Final[list[StateObserver]] = []
        """Observers, called when its process has begun to serve, serves no more, or has been stopped."""
        self.on_restart: Final[list[StateObserver]] = list(on_restart)
        """Observers, called when its process is a new one, whose KV cache is empty."""

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.state.value} {self.pool!r}>"

    # -- what the state means

    @property
    def facts(self) -> BackendFacts:
        return replace(self._facts, circuit=self.circuit.state)

    @property
    def explanation(self) -> str:
        """The reasons why it is not ready, or why abandoned slots stay out longer."""
        held = ""
        if self._facts.drained:
            held = "drained by an operator"
        elif self._facts.leaving:
            held = "its process is about to be stopped"
        unread = f"/slots cannot be read: {self.slots_failure}" if self.slots_failure else ""
        parts = (held, self.circuit.reason, self.process_failure, self.reason, unread)
        return "; ".join(part for part in parts if part)

    @property
    def can_serve(self) -> bool:
        """Return True if it is ready, or is loaded when a request needs it."""
        return self.state is BackendState.READY or (self.loads_on_request and self.state.may_become_ready)

    def is_unavailable(self, now: float) -> bool:
        """Return True if a new request should be refused instead of waiting for this backend."""
        patience_is_over = self.state.is_failed and now - self.since >= FAILURE_PATIENCE_S
        return self.state.is_gone or patience_is_over

    # -- changes of one fact each

    def observe(self, health: LastHealth, reason: str = "") -> None:
        """Note the result of a health check."""
        self.reason = reason
        self._update(replace(self._facts, health=health))

    def set_drained(self, drained: bool) -> None:
        """Drain it, so that it gets no new requests, or end the drain."""
        self._update(replace(self._facts, drained=drained))

    def set_leaving(self, leaving: bool) -> None:
        """Give it no new requests because its process is about to be stopped, or give it requests again."""
        self._update(replace(self._facts, leaving=leaving))

    def set_may_load(self, may_load: bool) -> None:
        """Set whether a stopped process is started again without an operator's order."""
        self._update(replace(self._facts, may_load=may_load))

    def wait_for_place(self, until: float | None) -> None:
        """Set the time until which requests may wait for a place in memory for it; None if none waits.

        These waits do not time out before. A process that starts or loads has its own limit of time.
        """
        if not self.state.is_coming and (until is None) is not (self.pool.loading_until is None):
            self.pool.loading_until = until
            self._tell()

    def process_changed(
        self, process: ProcessState, *, url: str, failure: str = "", kv_unified: bool | None = None
    ) -> None:
        """Note the state of its process. `failure` says why the last process ended, if it ended by itself."""
        could_be_asked = self._facts.can_be_asked
        self.process_failure = failure
        facts = with_process(self._facts, process)
        if process is ProcessState.READY:
            self.context_sources.process = kv_unified
            self.circuit.answered()
            self.move_to(url)
        else:
            self.reason = PROCESS_REASONS[process]
        if facts.can_be_asked or could_be_asked:
            self.process_changes += 1
        self._update(facts, adopts=self._facts.process is None)
        for observer in self.on_process_change:
            observer(self)

    def answered(self) -> None:
        """Note that a request got an event or a complete answer. An error is an answer, too."""
        was_closed = self.circuit.state is CircuitState.CLOSED
        self.circuit.answered()
        if not was_closed:
            self._update(self._facts)

    def silent(self) -> None:
        """Note that a request had no event in time."""
        self.circuit.silent(asyncio.get_running_loop().time())
        self._update(self._facts)

    def look_at_circuit(self) -> None:
        """Let one request through as a trial if the circuit breaker was open long enough."""
        if self.circuit.retry_at is not None:
            self.circuit.rested(asyncio.get_running_loop().time())
            self._update(self._facts)

    def restarted(self) -> None:
        """Forget what the old process held: its slots are idle and its KV cache is gone."""
        self.pool.restarted()
        for observer in self.on_restart:
            observer(self)

    def _update(self, facts: BackendFacts, *, adopts: bool = False) -> None:
        """Compute the state. `adopts` allows any state, because the process was unknown until now."""
        self._facts = facts
        before, after = self.state, backend_state(self.facts)
        self.pool.on_trial = self.circuit.state is CircuitState.HALF_OPEN
        begins_to_come = after.is_coming and (not before.is_coming or self.pool.loading_until is None)
        if begins_to_come:
            self.pool.loading_until = asyncio.get_running_loop().time() + self._start_timeout_s
        if after is before:
            if begins_to_come:
                self._tell()
            return
        try:
            if not adopts:
                check_transition(before, after)
        except IllegalBackendTransitionError as error:
            report_illegal_transition(self, error)
        self.state = after
        if after.label != before.label:
            self.since = asyncio.get_running_loop().time()
        self.pool.admitting = after is BackendState.READY
        if not after.is_coming:
            self.pool.loading_until = None
        self._tell()

    def _tell(self) -> None:
        for observer in tuple(self.on_change):
            observer(self)

    # -- what it has

    def adjust(
        self,
        *,
        api_key: str | None,
        slots: int | None,
        shared: bool,
        kv_unified: bool | None,
        connect_timeout_s: float,
        start_timeout_s: float,
        loads_on_request: bool,
    ) -> None:
        """Apply settings that may change while requests run. The caller then calls `Scheduler.dispatch`."""
        self.api_key = api_key
        self._requests = RequestBuilder(self.base_url, api_key)
        self.fixed_slots = slots
        self.context_sources.setting = kv_unified
        self.pool.total = slots or self.pool.total
        self.pool.quarantine.shared = shared
        self._start_timeout_s = start_timeout_s
        self.loads_on_request = loads_on_request
        for transport in (self.transport, self._control):
            transport.connect_timeout_s = connect_timeout_s

    def set_models(self, models: tuple[str, ...]) -> None:
        """Note the names of the models that it says it serves."""
        if models != self.models:
            self.models = models
            self._tell()

    def move_to(self, url: str) -> None:
        """Use another address, because its process listens there now."""
        self.base_url = httpx.URL(url)
        self._requests = RequestBuilder(self.base_url, self.api_key)
        for transport in (self.transport, self._control):
            transport.move_to(BackendAddress.of(self.base_url, None))

    def resize(self, total: int) -> None:
        """Set the number of slots, and the context that they share if they share one."""
        overflow = self.context_sources.overflow
        overflow.resized(self.n_ctx or 0, total)
        sharing = self.context_sources.conclusion(self.n_ctx, total, self.n_ctx_train)
        context = overflow.usable(self.n_ctx or 0) if sharing.unified else 0
        if sharing != self.sharing and total > 1:
            self._log_sharing(sharing)
        self.sharing = sharing
        if (total, context) != (self.pool.total, self.pool.context):
            self.pool.total, self.pool.context = total, context
            self._tell()

    def context_exceeded(self) -> None:
        """Note that llama-server ended requests because the context that they share was full.

        From now on their context is shared, or less of it is given out if that was known.
        """
        if self.n_ctx and self.pool.total > 1:
            overflow = self.context_sources.overflow
            overflow.resized(self.n_ctx, self.pool.total)
            if overflow.happened(asyncio.get_running_loop().time(), known=bool(self.pool.context)):
                log.warning("the shared context was exceeded", backend=self.name)
                self.resize(self.pool.total)

    def _log_sharing(self, sharing: ContextSharing) -> None:
        slots = "share one context" if sharing.unified else "have a context each"
        otherwise = f"kv_unified = {str(not sharing.unified).lower()} in its [[backend]] says otherwise"
        hint = {"assumed": otherwise} if sharing.assumed else {}
        log.info("context of slots", backend=self.name, slots=slots, because=sharing.because, **hint)

    # -- requests to it

    async def ask(self, path: str, method: str = "GET") -> httpx.Response:
        """Return one of its own pages, read whole. Raises `httpx.TransportError`, also if it is too big.

        Each query has a connection of its own. A kept one would often be stale, because llama-server closes
        idle connections.
        """
        answer = await self._control.handle_async_request(self._requests.query(path, method))
        page = bytearray()
        try:
            async for piece in answer.aiter_raw():
                page += piece
                if len(page) > MAX_PAGE_BYTES:
                    raise httpx.ReadError(f"{path} has more than {MAX_PAGE_BYTES} bytes")
        finally:
            await answer.aclose()
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(page))

    def whole_request(
        self, path: str, body: Body, headers: Headers, may_send_twice: Callable[[], bool] = lambda: True
    ) -> httpx.Request:
        """Return a POST whose answer is read whole, with the backend's own key and no headers but these.

        `may_send_twice` is asked if a kept connection was closed at the send.
        """
        return self._requests.whole(path, body, headers, may_send_twice)

    def stream_request(self, path: str, body: Body, headers: Headers) -> UpstreamRequest:
        """Return a POST whose answer is streamed, with the same headers as `whole_request`."""
        return self._requests.stream(path, body, headers)

    def scrubber(self, public_name: str) -> Callable[[bytes], bytes]:
        """Return a function that removes model paths and the backend's key from JSON texts."""
        return scrubber(self.model_path, self.api_key, public_name)

    async def aclose(self) -> None:
        await self._control.aclose()
        await self.transport.aclose()


def report_illegal_transition(backend: Backend, error: IllegalBackendTransitionError) -> None:
    """Log a fault of this program. The backend goes on with its new state, because the facts are true."""
    log.error("illegal backend transition", backend=backend.name, reason=str(error))
