"""Loads and unloads the processes behind backends, as `residency.plan` decides and operators request.

The loader asks for a new plan when something that waits, runs or admits has changed, at most once in each
turn of the event loop, and at the time that the last plan named. It makes the plan and carries it out in one
step without `await`. So it sees every request that was granted a slot before, and later requests wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.circuit_breaker import CircuitState
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.http.errors import CapacityError, ClientError, GatewayError
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.residency import (
    LOADS_PER_TURN,
    LoadOrder,
    Residence,
    Resident,
    Step,
    plan,
    residence_of,
)
from slotgate.gateway.processes.state import ProcessState
from slotgate.gateway.settings import Settings

__all__ = ["Loader"]

log = structlog.stdlib.get_logger(__name__)


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
        self._load_s: dict[str, float] = {}
        """Name of a process -> seconds that its last load took."""
        self._loop = asyncio.get_running_loop()
        self._residences: dict[str, tuple[Residence, float]] = {}
        self._orders: dict[str, tuple[LoadOrder, float]] = {}
        self._running = False
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self.configure(settings, processes)

    def configure(self, settings: Settings, processes: Iterable[LlamaProcess]) -> None:
        """Use these settings, and load and unload these processes. Their backends are in the fleet."""
        self._processes = {process.name: process for process in processes}
        self._entries = {entry.name: entry for entry in settings.backends if entry.name in self._processes}
        self._groups = {group.name: group for group in settings.groups}
        self._room = {group.name: group.max_loaded for group in settings.groups}
        self._longest_wait_s = settings.timeouts.total_s
        """The longest wait for a place that does not time out. A running request can take this long."""
        self._patience_s = settings.server.shutdown_grace_s
        self._loads_on_request = any(self._fleet.backends[name].loads_on_request for name in self._entries)
        self.changed()

    def load_new(self, name: str) -> None:
        """Load the process of a new backend that is loaded with the gateway."""
        self._orders[name] = (LoadOrder.LOAD, self._loop.time())
        self.changed()

    def __repr__(self) -> str:
        residences = ", ".join(
            f"{name} {residence.value}" for name, (residence, _) in self._residences.items()
        )
        return f"<Loader {residences or 'of nothing'}>"

    def start(self) -> None:
        self._running = True
        self.changed()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()

    # -- operators' actions

    def possible(self, name: str) -> tuple[str, ...]:
        backend, process = self._backend(name), self._processes.get(name)
        first = "resume" if backend.facts.drained else "drain"
        if process is None:
            return (first,)
        if process.state in (ProcessState.STOPPED, ProcessState.STOPPING, ProcessState.GIVEN_UP):
            return (first, "load")
        return (first, "restart", "unload")

    def drain(self, name: str) -> None:
        self._backend(name).set_drained(True)

    def resume(self, name: str) -> None:
        self._backend(name).set_drained(False)

    def load(self, name: str) -> None:
        process = self._process(name, "load")
        self._fleet.backends[name].set_may_load(True)
        if process.state in (ProcessState.STOPPED, ProcessState.STOPPING, ProcessState.GIVEN_UP):
            self._order(name, LoadOrder.LOAD)
        elif self._orders.pop(name, None):
            self._look()  # this withdraws an unload or a restart

    def unload(self, name: str) -> None:
        process = self._process(name, "unload")
        backend = self._fleet.backends[name]
        backend.set_may_load(backend.loads_on_request)
        if process.state is ProcessState.GIVEN_UP:
            process.begin_stop()
        self._order(name, LoadOrder.UNLOAD)

    def restart(self, name: str) -> None:
        self._process(name, "restart")
        self._fleet.backends[name].set_may_load(True)
        self._order(name, LoadOrder.RESTART)

    def _order(self, name: str, order: LoadOrder) -> None:
        log.info("operator action", backend=name, action=order.value)
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
            message = (
                f"the backend {name!r} was not started by the gateway, which therefore cannot {order} it"
            )
            raise ClientError("not_a_process", message, status=409)
        return process

    # -- looking

    def changed(self) -> None:
        """Plan anew in the next turn of the event loop, because tickets, leases or states have changed."""
        if (
            self._running
            and not self._look_is_due
            and (self._loads_on_request or self._orders or self._wedged())
        ):
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _wedged(self) -> list[str]:
        """Return the processes that answer health checks and no requests. A restart may help them."""
        return [
            name
            for name, process in self._processes.items()
            if process.state is ProcessState.READY
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
            self._orders[name] = (LoadOrder.RESTART, now)
        self._note_residences(now)
        planned = plan(self._residents(), self._fleet.waiting_since(), self._room, now)
        for step, name in planned.steps:
            self._do(step, name)
        for name in self._entries:
            waits = name in planned.waits_for_place
            self._fleet.backends[name].wait_for_place(now + self._longest_wait_s if waits else None)
        if any(step is not Step.CANCEL for step, _ in planned.steps):
            self.changed()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if planned.look_at is None else self._loop.call_at(planned.look_at, self._look)

    def _note_residences(self, now: float) -> None:
        for name in self._processes:
            backend = self._fleet.backends[name]
            residence = residence_of(backend.facts)
            if residence in (Residence.STOPPED, Residence.FAILED, Residence.COMING):
                backend.set_leaving(False)
                if (
                    self._orders.get(name, (None,))[0] is LoadOrder.UNLOAD
                    and residence is not Residence.COMING
                ):
                    del self._orders[name]
            before, since = self._residences.get(name, (None, now))
            if before is not residence:
                self._residences[name] = (residence, now)
                if (before, residence) == (Residence.COMING, Residence.LOADED):
                    self._load_s[name] = now - since

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
        residence, since = self._residences[backend.name]
        order, at = self._orders.get(backend.name, (None, 0.0))
        group = self._groups.get(entry.group)
        pays_off_s = LOADS_PER_TURN * self._load_s.get(backend.name, 0.0)
        return Resident(
            backend.name,
            residence,
            since,
            models=frozenset() if backend.facts.drained else models,
            loads_on_request=backend.loads_on_request,
            group=entry.group,
            leases=len(backend.pool.leases),
            idle_since=backend.pool.idle_since,
            idle_unload_s=entry.idle_unload_s,
            keeps_s=max(group.residence_s, pays_off_s) if group else 0.0,
            linger_s=group.linger_s if group else 0.0,
            rests_s=self._processes[backend.name].rest_s,
            has_failed=self._processes[backend.name].has_failed,
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
                backend.set_leaving(True)
            case Step.STAY:
                backend.set_leaving(False)
            case Step.CANCEL:
                error = CapacityError(503, "draining", "the backend is being stopped", retry_after_s=5.0)
                self._cancel_requests(error, name)
            case Step.STOP:
                backend.set_leaving(True)
                process.begin_stop()
            case Step.FORGET:
                process.begin_stop()


def _foreign(backend: Backend, models: frozenset[str]) -> Resident:
    """Return a backend that the gateway does not run. It counts if it is there or coming."""
    residence = Residence.STOPPED
    if backend.state.is_up:
        residence = Residence.LOADED
    elif backend.state.is_coming:
        residence = Residence.COMING
    return Resident(backend.name, residence, 0.0, models=models)
