"""All backends: builds them from the settings, watches them, and says which serve which model."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from slotgate.admission import Lease, Scheduler
from slotgate.gateway.backends.affinity import Affinity
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.health_monitor import HealthMonitor, is_refusal
from slotgate.gateway.backends.model_catalogue import ModelCatalogue
from slotgate.gateway.backends.slot_eraser import SlotEraser
from slotgate.gateway.backends.slot_prober import SlotProber
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.settings import BackendSettings, Settings, isolating

__all__ = ["Fleet", "loads_on_request", "reasons"]

LOAD_REQUEST_S = 30.0
"""Seconds for which a slot-free request for a model counts as demand for loading it."""
log = structlog.stdlib.get_logger(__name__)

_Watcher = HealthMonitor | SlotProber | SlotEraser


class Fleet:
    """Belongs to the running event loop. `start` begins watching, `stop` leaves nothing behind."""

    def __init__(
        self, settings: Settings, scheduler: Scheduler, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._scheduler = scheduler
        self._environ = dict(environ)
        self._entries: dict[str, BackendSettings] = {}
        self.affinity = Affinity()
        self.backends: dict[str, Backend] = {}
        self._monitors: dict[str, HealthMonitor] = {}
        self.probers: dict[str, SlotProber] = {}
        self._erasers: dict[str, SlotEraser] = {}
        """Backend name -> eraser, for backends that number their slots."""
        self._retired: set[Backend] = set()
        """Backends that the configuration no longer has, but whose last requests still run."""
        self._serving: dict[str, Backend] = {}
        """Pool name -> backend, the retired ones included."""
        self._pools = itertools.count(1)
        self.catalogue = ModelCatalogue()
        self._load_requests: dict[str, float] = {}
        """Model -> time of the last slot-free request for it; counts as demand for loading."""
        self.on_closed: list[Callable[[str], None]] = []
        """They are called with the name of a pool whose retired backend is closed. They must not raise."""
        self._closing: set[asyncio.Task[None]] = set()
        self._started = False
        self.apply(settings)

    def add_keys(self, keys: Mapping[str, str]) -> None:
        """Add keys of backends, under the names that the settings give them."""
        self._environ |= keys

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on.

        A backend with another address or command is replaced; requests that run on the old one end there. A
        backend that stays where it was keeps its slots and the requests in them.
        """
        wanted = {entry.name: entry for entry in settings.backends}
        for name in [
            name for name, entry in self._entries.items() if not self._stays(entry, wanted.get(name))
        ]:
            self._retire(name)
        for name, entry in wanted.items():
            if name not in self._entries:
                self._add(entry, settings)
            else:
                self._adjust(entry, settings)
        self.backends = {name: self.backends[name] for name in wanted}
        self.catalogue.configure(settings.models)
        self._reroute()

    def _stays(self, before: BackendSettings, after: BackendSettings | None) -> bool:
        """Return True if both entries are the same llama-server.

        A backend that the gateway does not run is also replaced if its models are found out in another way.
        """
        if after is None or (before.url, before.command) != (after.url, after.command):
            return False
        is_own = self.backends[before.name].facts.process is not None
        return is_own or bool(before.models) == bool(after.models)

    def _add(self, entry: BackendSettings, settings: Settings) -> None:
        pool_name = entry.name if entry.name not in self._serving else f"{entry.name}#{next(self._pools)}"
        backend = self._backend(entry, pool_name, settings.timeouts.connect_s)
        prober = SlotProber(
            backend,
            quarantine_max_s=settings.admission.quarantine_max_s,
            on_slots=self._scheduler.dispatch,
        )
        monitor = HealthMonitor(
            backend, prober, interval_s=entry.health_interval_s, ask_models=not entry.models
        )
        self._entries[entry.name] = entry
        self.backends[entry.name] = self._serving[pool_name] = backend
        self._monitors[entry.name] = monitor
        self.probers[entry.name] = prober
        self.catalogue.add(backend, entry.models)
        if entry.name in isolating(settings):
            backend.pool.numbered = True
            self._erasers[entry.name] = SlotEraser(backend, self._scheduler.dispatch)
        if self._started:
            for watcher in self._watchers_of(entry.name):
                watcher.start()

    def _backend(self, entry: BackendSettings, pool_name: str, connect_timeout_s: float) -> Backend:
        assert entry.base_url is not None, "a backend with a command is given its URL when its process starts"
        return Backend(
            entry.name,
            entry.base_url,
            api_key=entry.api_key(self._environ),
            unix_socket=entry.unix_socket,
            slots=entry.slots,
            shared=entry.shared,
            kv_unified=entry.kv_unified,
            pool_name=pool_name,
            connect_timeout_s=connect_timeout_s,
            start_timeout_s=entry.start_timeout_s,
            loads_on_request=loads_on_request(entry),
            on_change=[self._changed],
            on_restart=[self._forget_prompts],
        )

    def _adjust(self, entry: BackendSettings, settings: Settings) -> None:
        backend = self.backends[entry.name]
        backend.adjust(
            api_key=entry.api_key(self._environ),
            slots=entry.slots,
            shared=entry.shared,
            kv_unified=entry.kv_unified,
            connect_timeout_s=settings.timeouts.connect_s,
            start_timeout_s=entry.start_timeout_s,
            loads_on_request=loads_on_request(entry),
        )
        self._monitors[entry.name].adjust(interval_s=entry.health_interval_s, ask_models=not entry.models)
        self.probers[entry.name].adjust(quarantine_max_s=settings.admission.quarantine_max_s)
        self._entries[entry.name] = entry
        self.catalogue.add(backend, entry.models)

    def _retire(self, name: str) -> None:
        backend = self.backends.pop(name)
        watchers = self._watchers_of(name)
        for kind in (self._monitors, self.probers, self._erasers, self._entries):
            kind.pop(name, None)
        self.catalogue.remove(backend)
        backend.pool.admitting = False
        backend.on_change.remove(self._changed)
        self._retired.add(backend)

        def idle() -> None:
            task = asyncio.get_running_loop().create_task(self._close(backend, watchers))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        if backend.pool.leases:
            backend.pool.on_idle.append(idle)
        else:
            idle()

    async def _close(self, backend: Backend, watchers: Iterable[_Watcher]) -> None:
        """Close a retired backend, because its last request has ended.

        A slow client reads the rest from a buffer.
        """
        self._retired.discard(backend)
        self._serving.pop(backend.pool.name, None)
        self.affinity.forget(backend.pool.name)
        for observer in self.on_closed:
            observer(backend.pool.name)
        for watcher in watchers:
            await watcher.stop()
        await backend.aclose()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.backends.values())!r}>"

    @property
    def ready(self) -> bool:
        """Return True if a backend is ready or is loaded when a request needs it."""
        return any(backend.can_serve for backend in self.backends.values())

    def start(self) -> None:
        self._started = True
        for watcher in self._watchers:
            watcher.start()

    @property
    def _watchers(self) -> list[_Watcher]:
        return [*self._monitors.values(), *self.probers.values(), *self._erasers.values()]

    def _watchers_of(self, name: str) -> list[_Watcher]:
        eraser = self._erasers.get(name)
        return [self._monitors[name], self.probers[name], *([eraser] if eraser is not None else [])]

    async def stop(self) -> None:
        for watcher in self._watchers:
            await watcher.stop()
        for backend in [*self.backends.values(), *self._retired]:
            await backend.aclose()
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)

    @property
    def serving(self) -> Collection[Backend]:
        """All backends with requests, the retired ones included. The view changes with the fleet."""
        return self._serving.values()

    def backend_of(self, pool_name: str) -> Backend:
        return self._serving[pool_name]

    def request_load(self, model: str) -> None:
        """Note that a slot-free request needs this model. The loader then loads it if it can."""
        self._load_requests[model] = asyncio.get_running_loop().time()
        self._scheduler.dispatch()

    def waiting_since(self) -> dict[str, float]:
        """Return model -> the time since which requests wait for it, in the queue or by `request_load`."""
        now = asyncio.get_running_loop().time()
        for name, since in list(self._load_requests.items()):
            model = self.catalogue.models.get(name)
            served = model is None or any(b.state is BackendState.READY for b in model.backends)
            if served or now - since > LOAD_REQUEST_S:
                del self._load_requests[name]
        return self._load_requests | self._scheduler.waiting_since()

    def name_of(self, pool_name: str) -> str:
        """Return the name of the backend of a pool. It may have been retired, and closed by now."""
        backend = self._serving.get(pool_name)
        return pool_name if backend is None else backend.name

    def refused(self, pool_name: str, error: GatewayError, *, loading: bool) -> bool:
        """Note that a backend has not begun a request. Return True if the request may wait for this backend.

        It may if the backend loads its model, or will: the gateway starts its own processes again.
        """
        backend = self._serving.get(pool_name)
        if backend is None:
            return loading
        process = backend.facts.process
        loading = loading or backend.state.is_coming
        if backend in self.backends.values():
            monitor = self._monitors[backend.name]
            monitor.note_refusal(error.message, loading=loading, refused=is_refusal(error))
        return loading or (process is not None and process.may_become_ready)

    def has_pool(self, pool_name: str) -> bool:
        """Return True if the configuration has the backend of this pool. It does not have a retired one."""
        return self._serving.get(pool_name) in self.backends.values()

    async def has_died(self, pool_name: str) -> bool:
        """Ask a backend for its health because it has lost a request. Return True if it has died.

        A retired backend is not asked.
        """
        if not self.has_pool(pool_name):
            return False
        return await self._monitors[self._serving[pool_name].name].finds_death()

    def context_exceeded(self, pool_name: str) -> None:
        """Note that a backend ended a request because the context of its slots was full."""
        backend = self._serving.get(pool_name)
        if backend is not None:
            backend.context_exceeded()

    def had_company(self, lease: Lease, at: float) -> bool:
        """Return True if another lease of its pool was there when this one was lost, and still is."""
        backend = self._serving.get(lease.pool_name)
        return backend is not None and any(other.granted_at < at for other in backend.pool.leases)

    def reasons_of(self, model: str) -> str:
        """Return why the backends of a model take no requests; empty if they do, or there are none."""
        served = self.catalogue.models.get(model)
        return reasons([] if served is None else served.backends)

    def _changed(self, backend: Backend) -> None:
        pool = backend.pool
        context = {"context": pool.context} if pool.context else {}
        log.info("backend", backend=backend.name, state=backend.state.label, slots=pool.total, **context)
        self._reroute()

    def _forget_prompts(self, backend: Backend) -> None:
        self.affinity.forget(backend.pool.name)

    def _reroute(self) -> None:
        self.catalogue.rebuild()
        self._scheduler.route(
            {
                model.name: [backend.pool for backend in model.backends if not backend.state.is_gone]
                for model in self.catalogue.models.values()
            }
        )


def reasons(backends: Iterable[Backend]) -> str:
    """Return why these backends take no requests, in words. Those that take some are left out."""
    silent = (backend for backend in backends if backend.state is not BackendState.READY)
    return "; ".join(f"{backend.name}: {backend.explanation}" for backend in silent)


def loads_on_request(entry: BackendSettings) -> bool:
    """Return True if the process of this backend is loaded when a request needs it.

    A process that the gateway unloads by itself is also loaded by itself.
    """
    return entry.load == "demand" or bool(entry.group) or bool(entry.idle_unload_s)
