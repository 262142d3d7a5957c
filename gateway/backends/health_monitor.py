"""Watches one backend: finds out if it is reachable, if its model is loaded, and which models it serves.

Every `health_interval_s` the monitor asks for /health and /props, which neither disturb a busy llama-server
nor wake a sleeping one. Before the first grant it makes the prober ask for /slots once: requests of a gateway
that was killed may still use slots. It asks for /v1/models when the backend becomes ready. A process that the
gateway runs reports its own start, and is asked only once it is ready.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx
import structlog

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.control_query import OutdatedAnswerError, json_object, query
from slotgate.gateway.backends.kv_sharing import kv_unified_from_command
from slotgate.gateway.backends.local_command import command_of_listener, local_port
from slotgate.gateway.backends.slot_prober import SlotProber
from slotgate.gateway.backends.state import LastHealth, ProcessState

__all__ = ["HealthMonitor", "is_refusal"]

MISSES = 2
"""A backend that misses this many health checks in a row counts as unreachable."""
ALIVE_S = 35.0
"""A stream that brought something this recently proves that its backend lives: llama-server pings a silent
stream every 30 s."""
MAX_SLOTS = 4096
"""A backend that states more slots than this is not believed, because every slot is looked at one by one."""
MAX_CONTEXT = 2**31 - 1
"""llama-server's own limit: it counts tokens in 32 bits."""
DEATH_S = 1.0
"""Seconds in which a backend that has just died shows it: a connection to it is refused or closed at once."""
_RETRY_S = 0.2
"""Seconds between health checks while the backend is not ready, or less if the interval is shorter."""
log = structlog.stdlib.get_logger(__name__)


class HealthMonitor:
    """Watches one backend.

    `prober` is told when the model sleeps. `ask_models` is True if the models of the backend are not
    configured.
    """

    def __init__(self, backend: Backend, prober: SlotProber, *, interval_s: float, ask_models: bool) -> None:
        self._backend = backend
        self._prober = prober
        self._interval_s = interval_s
        self._ask_models = ask_models
        self._models_are_due = False
        """True if a reload wants the backend to be asked for its models."""
        self._misses = 0
        self._delivered_at: float | None = None
        """The last time at which streams were seen to have delivered bytes."""
        self._refused = False
        """True if a connection was refused since the last good answer, so the old process has ended."""
        self._looked_at_slots = False
        """True once /slots was asked before the first grant, whatever the answer was."""
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        backend.on_process_change.append(self._process_changed)

    def __repr__(self) -> str:
        return f"<HealthMonitor of {self._backend!r}, {self._misses} misses>"

    def start(self) -> None:
        name = f"health of {self._backend.name}"
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    def adjust(self, *, interval_s: float, ask_models: bool) -> None:
        """Take other settings and ask at once."""
        self._interval_s = interval_s
        self._models_are_due = ask_models and not self._ask_models
        self._ask_models = ask_models
        self._look.set()

    async def check(self) -> None:
        """Ask once and note the result. Raises `OutdatedAnswerError` if the process changed meanwhile."""
        backend = self._backend
        if backend.transport.heard():
            self._delivered_at = asyncio.get_running_loop().time()
        backend.look_at_circuit()
        try:
            health = await query(backend, "/health")
            if health.status_code == 503:
                self._misses = 0
                self._restarted()
                backend.observe(LastHealth.LOADING, "loading its model")
            elif health.status_code != 200:
                self._missed(f"/health answered {health.status_code}")
            else:
                await self._learn()
        except httpx.HTTPError as error:
            self._refused = self._refused or is_refusal(error)
            self._missed(str(error) or type(error).__name__)

    def note_refusal(self, reason: str, *, loading: bool, refused: bool) -> None:
        """Note that a request found the backend loading, or not there, and ask again at once.

        `refused`: the connection was refused, so the old process has ended.
        """
        self._refused = self._refused or refused
        if self._backend.state.is_up:
            self._misses = 0 if loading else MISSES
            self._backend.observe(LastHealth.LOADING if loading else LastHealth.MISSED, reason)
            self._look.set()

    async def finds_death(self) -> bool:
        """Ask for /health because a request was cut short. Return True if the backend has died.

        It has if nothing listens, if the connection is closed again, or if it loads its model. No answer
        within `DEATH_S` says nothing, and neither does the end of a process that was told to stop.
        """
        backend, changes = self._backend, self._backend.process_changes
        if not backend.facts.can_be_asked:
            return _died(backend)
        try:
            async with asyncio.timeout(DEATH_S):
                health = await backend.ask("/health")
        except (TimeoutError, httpx.TimeoutException):
            return False
        except httpx.TransportError as error:
            if changes == backend.process_changes:
                reason = str(error) or type(error).__name__
                self.note_refusal(reason, loading=False, refused=is_refusal(error))
                return True
        if changes != backend.process_changes:
            return _died(backend)
        if health.status_code == 503:
            self.note_refusal("loading its model", loading=True, refused=False)
            return True
        return False

    def _process_changed(self, backend: Backend) -> None:
        process = backend.facts.process
        if process is ProcessState.READY:
            self._look.set()
        elif process in (ProcessState.BACKOFF, ProcessState.GIVEN_UP, ProcessState.STOPPED):
            self._restarted()

    async def _watch(self) -> None:
        while True:
            self._look.clear()
            asks = self._backend.facts.can_be_asked
            if asks:
                await self._check_and_go_on()
            asks = self._backend.facts.can_be_asked
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s if asks else None):
                    await self._look.wait()

    async def _check_and_go_on(self) -> None:
        """Check, and survive a fault of this program: a backend that is not watched would never be ready."""
        try:
            await self.check()
        except OutdatedAnswerError:
            pass
        except Exception:
            log.exception("internal error", backend=self._backend.name)

    @property
    def _pause_s(self) -> float:
        is_good = self._backend.facts.health is LastHealth.GOOD
        return self._interval_s if is_good else min(_RETRY_S, self._interval_s)

    def _restarted(self) -> None:
        self._refused = False
        self._backend.restarted()

    async def _learn(self) -> None:
        """Take from /props and /v1/models what the backend has and serves."""
        backend = self._backend
        asked_at = asyncio.get_running_loop().time()
        answer = await query(backend, "/props")
        if answer.status_code in (401, 403):
            refuses, wants = "it refuses the gateway's key", "it needs a key, and none is configured"
            self._missed(refuses if backend.api_key else wants)
            return
        props = json_object(answer)
        backend.props = props
        backend.model_path = _text(props.get("model_path"))
        settings = props.get("default_generation_settings")
        n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
        backend.n_ctx = _number(n_ctx, MAX_CONTEXT)
        total = backend.fixed_slots or _number(props.get("total_slots"), MAX_SLOTS)
        if total is None:
            self._missed("it does not say how many slots it has")
            return
        if backend.facts.health is not LastHealth.GOOD or self._models_are_due:
            await self._learn_models(_text(props.get("model_alias")))
            await self._learn_command()
        self._misses = 0
        if self._refused:
            self._restarted()
        self._prober.sleeps(props.get("is_sleeping") is True, asked_at)
        backend.resize(total)
        if not self._looked_at_slots and props.get("is_sleeping") is not True:
            await self._look_at_slots()
        backend.observe(LastHealth.GOOD)

    async def _look_at_slots(self) -> None:
        """Find out which slots are busy already. A process that the gateway has just started has none."""
        if self._backend.facts.process is None:
            await self._prober.look()
        self._looked_at_slots = True

    async def _learn_command(self) -> None:
        """Find out from its command, if it runs on this machine, if the slots share one context."""
        backend = self._backend
        port = local_port(str(backend.base_url))
        if backend.facts.process is not None or port is None:
            return
        command = await command_of_listener(port)
        unified = kv_unified_from_command(command.words, command.environ) if command else None
        backend.context_sources.command = unified

    async def _learn_models(self, alias: str | None) -> None:
        try:
            data = json_object(await query(self._backend, "/v1/models")).get("data")
        except httpx.HTTPError:
            if self._ask_models:
                raise
            return  # its models are configured; only the size that they were trained for stays unknown
        entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        metas = [entry.get("meta") for entry in entries]
        trained = [meta.get("n_ctx_train") for meta in metas if isinstance(meta, dict)]
        self._backend.n_ctx_train = next((size for size in trained if _number(size, MAX_CONTEXT)), None)
        if self._ask_models:
            names = [entry.get("id") for entry in entries]
            found = tuple(name for name in names if isinstance(name, str) and name)
            self._backend.set_models(found or ((alias,) if alias else ()))
        self._models_are_due = False

    def _missed(self, reason: str) -> None:
        """Note a health check without a good answer. A backend whose streams deliver is alive anyway."""
        self._misses += 1
        backend, health = self._backend, self._backend.facts.health
        if self._misses < MISSES or health is LastHealth.MISSED:
            backend.reason = reason
            return
        if health in (LastHealth.GOOD, LastHealth.STREAMING) and self._delivers():
            backend.observe(LastHealth.STREAMING, f"{reason}; its streams go on")
            return
        log.warning("backend unreachable", backend=backend.name, reason=reason)
        backend.observe(LastHealth.MISSED, reason)

    def _delivers(self) -> bool:
        now = asyncio.get_running_loop().time()
        recent = self._delivered_at is not None and now - self._delivered_at < ALIVE_S
        return recent and bool(self._backend.pool.leases)


def _died(backend: Backend) -> bool:
    """Return True if the process has ended by itself. Since a request ran on it, it had been READY."""
    return backend.facts.process not in (ProcessState.STOPPING, ProcessState.STOPPED)


def is_refusal(error: BaseException) -> bool:
    """Return True if the error, or an error that caused it, is a refused connection."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _number(value: object, most: int) -> int | None:
    """Return a number from 1 to `most`, or None for anything else. JSON's true is no number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= most else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
