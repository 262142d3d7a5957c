"""Loads and unloads the processes behind backends, as `residency.plan` decides and as the operator orders.

It looks whenever something has changed that waits, runs or admits, once a turn of the event loop, and when
time alone changes the answer. A look and what follows from it are one step without `await`: a request that
was granted its slot in the turn before is seen, and one that comes in the turn after waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from slotgate.gateway.backends.backend import Backend, Hold
from slotgate.gateway.backends.circuit_breaker import CircuitState
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.backends.state import BackendState
from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError
from slotgate.gateway.processes.residency import Order, Resident, Stage, Step, plan
from slotgate.gateway.processes.state import State
from slotgate.gateway.processes.supervisor import LlamaProcess
from slotgate.gateway.settings import BackendSettings, Settings

__all__ = ["Loader"]

log = structlog.stdlib.get_logger(__name__)

_STAGES = {
    State.STOPPED: Stage.STOPPED,
    State.STARTING: Stage.COMING,
    State.LOADING: Stage.COMING,
    State.BACKOFF: Stage.COMING,
    State.STOPPING: Stage.STOPPING,
    State.GIVEN_UP: Stage.FAILED,
}


class Loader:
    """Belongs to the running event loop. Also runs operators' actions (`admin.actions.BackendActions`)."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        processes: Iterable[LlamaProcess] = (),
        *,
        cancel_requests: Callable[[GatewayError, str], None],
    ) -> None:
        """`cancel_requests` ends the running requests of one backend with an error."""
        self._fleet = fleet
        self._cancel_requests = cancel_requests
        self._processes = {process.name: process for process in processes}
        self._entries = {entry.name: entry for entry in settings.backends if entry.name in self._processes}
        self._room = {group.name: group.max_loaded for group in settings.groups}
        self._patience_s = settings.server.shutdown_grace_s
        self._loop = asyncio.get_running_loop()
        self._stages: dict[str, tuple[Stage, float]] = {}
        self._leaving: set[str] = set()
        self._orders: dict[str, tuple[Order, float]] = {}
        self._running = False
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._any_by_request = any(map(_by_request, self._entries.values()))

    def __repr__(self) -> str:
        stages = ", ".join(f"{name} {stage.value}" for name, (stage, _) in self._stages.items())
        return f"<Loader {stages or 'of nothing'}>"

    def start(self) -> None:
        for name, entry in self._entries.items():
            self._fleet.backends[name].on_request = _by_request(entry)
        self._running = True
        self.changed()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()

    # -- orders

    def possible(self, name: str) -> tuple[str, ...]:
        backend, process = self._backend(name), self._processes.get(name)
        first = "resume" if backend.held is Hold.BY_ORDER else "drain"
        if process is None:
            return (first,)
        if process.state in (State.STOPPED, State.STOPPING, State.GIVEN_UP):
            return (first, "load")
        return (first, "restart", "unload")

    def drain(self, name: str) -> None:
        self._backend(name).hold(Hold.BY_ORDER)

    def resume(self, name: str) -> None:
        backend = self._backend(name)
        if backend.held is Hold.BY_ORDER:
            backend.hold(Hold.TO_STOP if name in self._leaving else None)

    def load(self, name: str) -> None:
        process = self._process(name, "load")
        self._fleet.backends[name].will_load = True
        if process.state in (State.STOPPED, State.STOPPING, State.GIVEN_UP):
            self._order(name, Order.LOAD)
        elif self._orders.pop(name, None):
            self._look()  # it stays

    def unload(self, name: str) -> None:
        process = self._process(name, "unload")
        self._fleet.backends[name].will_load = _by_request(self._entries[name])
        if process.state is State.GIVEN_UP:
            process.begin_stop()
        self._order(name, Order.UNLOAD)

    def restart(self, name: str) -> None:
        self._process(name, "restart")
        self._fleet.backends[name].will_load = True
        self._order(name, Order.RESTART)

    def _order(self, name: str, order: Order) -> None:
        log.info("ordered", backend=name, order=order.value)
        self._orders[name] = (order, self._loop.time())
        self._look()

    def _backend(self, name: str) -> Backend:
        backend = self._fleet.backends.get(name)
        if backend is None:
            raise ClientError("backend_not_found", f"there is no backend {name[:64]!r}", status=404)
        return backend

    def _process(self, name: str, order: str) -> LlamaProcess:
        self._backend(name)
        process = self._processes.get(name)
        if process is None:
            message = f"the backend {name!r} is no process of the gateway's: it cannot {order} it"
            raise ClientError("not_a_process", message, status=409)
        return process

    # -- looking

    def changed(self) -> None:
        """Something waits, runs or admits that did not, or does no more."""
        if (
            self._running
            and not self._look_is_due
            and (self._any_by_request or self._orders or self._wedged())
        ):
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _wedged(self) -> list[str]:
        """Processes that answer for their health and nothing else: no request helps them, a restart may."""
        return [
            name
            for name, process in self._processes.items()
            if process.state is State.READY
            and name not in self._orders
            and self._fleet.backends[name].circuit.state is CircuitState.OPEN
        ]

    def _look(self) -> None:
        self._look_is_due = False
        if not self._running:
            return
        now = self._loop.time()
        for name in self._wedged():
            log.warning("restarted because it does not answer", backend=name)
            self._orders[name] = (Order.RESTART, now)
        self._note_stages(now)
        planned = plan(self._residents(), self._fleet.waiting_since(), self._room, now)
        for step, name in planned.steps:
            self._do(step, name)
        if any(step is not Step.CUT for step, _ in planned.steps):
            self.changed()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if planned.look_at is None else self._loop.call_at(planned.look_at, self._look)

    def _note_stages(self, now: float) -> None:
        for name, process in self._processes.items():
            backend = self._fleet.backends[name]
            stage = _STAGES.get(process.state)
            if stage is None:  # READY
                loads = backend.observed.is_coming
                stage = Stage.LEAVING if name in self._leaving else Stage.COMING if loads else Stage.LOADED
            if stage in (Stage.STOPPED, Stage.FAILED, Stage.COMING):
                self._let_stay(name, backend)
                if self._orders.get(name, (None,))[0] is Order.UNLOAD and stage is not Stage.COMING:
                    del self._orders[name]
            if self._stages.get(name, (None,))[0] is not stage:
                self._stages[name] = (stage, now)

    def _residents(self) -> list[Resident]:
        served: dict[Backend, set[str]] = {}
        for model in self._fleet.catalogue.models.values():
            for backend in model.backends:
                served.setdefault(backend, set()).add(model.name)
        return [
            self._own(backend, frozenset(served.get(backend, ())))
            if name in self._processes
            else _foreign(backend, frozenset(served.get(backend, ())))
            for name, backend in self._fleet.backends.items()
        ]

    def _own(self, backend: Backend, models: frozenset[str]) -> Resident:
        entry = self._entries[backend.name]
        stage, since = self._stages[backend.name]
        order, at = self._orders.get(backend.name, (None, 0.0))
        return Resident(
            backend.name,
            stage,
            since,
            models=frozenset() if backend.held is Hold.BY_ORDER else models,
            by_request=_by_request(entry),
            group=entry.group,
            leases=len(backend.pool.leases),
            idle_since=backend.pool.idle_since,
            idle_unload_s=entry.idle_unload_s,
            order=order,
            order_at=at,
            order_until=at + self._patience_s,
        )

    # -- doing

    def _do(self, step: Step, name: str) -> None:
        process, backend = self._processes[name], self._fleet.backends[name]
        log.info("residency", backend=name, step=step.value, leases=len(backend.pool.leases))
        match step:
            case Step.LOAD:
                self._orders.pop(name, None)
                process.start()
            case Step.LEAVE:
                self._have_leave(name, backend)
            case Step.STAY:
                self._let_stay(name, backend)
            case Step.CUT:
                error = CapacityError(503, "draining", "the backend is being stopped", retry_after_s=5.0)
                self._cancel_requests(error, name)
            case Step.STOP:
                self._have_leave(name, backend)
                process.begin_stop()
            case Step.FORGET:
                process.begin_stop()

    def _have_leave(self, name: str, backend: Backend) -> None:
        self._leaving.add(name)
        if backend.held is None:
            backend.hold(Hold.TO_STOP)

    def _let_stay(self, name: str, backend: Backend) -> None:
        self._leaving.discard(name)
        if backend.held is Hold.TO_STOP:
            backend.hold(None)


def _by_request(entry: BackendSettings) -> bool:
    """One that can be unloaded by itself is also loaded by itself."""
    return entry.load == "demand" or bool(entry.group) or bool(entry.idle_unload_s)


def _foreign(backend: Backend, models: frozenset[str]) -> Resident:
    """A backend that is no process of ours: it is there, or it is coming, or it does not count."""
    stage = Stage.STOPPED
    if backend.state in (BackendState.READY, BackendState.BUSY):
        stage = Stage.LOADED
    elif backend.state.is_coming:
        stage = Stage.COMING
    return Resident(backend.name, stage, 0.0, models=models)
