"""Watching one backend: its health, its slots and models, and whether its quarantined slots are idle again.

Two loops, each with a client of their own side, never the connections that streams use:

* every `health_interval_s`: `/health` and `/props`, which neither disturb a busy server nor wake a
  sleeping one; `/v1/models` once it is ready;
* `/slots` only when admission says so (see `admission.quarantine`): asking more often keeps abandoned work
  alive. An answer that is none changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import orjson
import structlog

from slotgate.admission import SETTLE_S
from slotgate.gateway.backends.backend import Backend, BackendState

__all__ = ["Monitor"]

ASK_S = 5.0
"""Within this an answer is whole, or none: a body that drips would hold up the loop that waits for it."""
STRIKES = 2
"""Missed answers in a row after which a backend counts as not there."""
ASLEEP_S = 1.5
"""What was closed this long before llama-server said that it sleeps is not under way to it."""
_OF_PROCESS = {
    BackendState.STARTING: "its process starts",
    BackendState.LOADING: "loading its model",
    BackendState.STOPPED: "not loaded",
}
ALIVE_S = 35.0
"""So long what its streams brought proves that it lives: llama-server pings a silent stream every 30 s."""
log = structlog.stdlib.get_logger(__name__)


class _OutdatedError(Exception):
    """The process that was asked is not the one that runs now."""


class Monitor:
    """`on_slots` is called when slots may have become free."""

    def __init__(
        self,
        backend: Backend,
        *,
        interval_s: float,
        quarantine_max_s: float,
        ask_models: bool,
        on_slots: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.slots_served = True
        self.probes = 0
        self._interval_s = interval_s
        self._quarantine_max_s = quarantine_max_s
        self._ask_models = ask_models
        self._on_slots = on_slots
        self._asks = True
        """Whether there is anybody to ask: a process of ours tells by itself until it is ready."""
        self._processes = 0
        """How often the process behind the backend has changed: an answer of another one says nothing."""
        self._asleep = False
        """Whether llama-server has unloaded its model by itself; being asked for its slots would wake it."""
        self._strikes = 0
        self._heard_at: float | None = None
        """When it was seen last that streams brought something."""
        self._refused = False
        """Whether nobody listened since the last good answer: the process that did has ended."""
        self._look = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Monitor of {self.backend!r}, {self.probes} probes>"

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._watch_health(), name=f"health of {self.backend.name}"),
            loop.create_task(self._watch_slots(), name=f"slots of {self.backend.name}"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def nudge(self) -> None:
        """A lease was released: a slot may have to be verified."""
        self._wake.set()

    def adjust(self, *, interval_s: float, quarantine_max_s: float) -> None:
        """From now on: it asks at once."""
        self._interval_s = interval_s
        self._quarantine_max_s = quarantine_max_s
        self._look.set()
        self._wake.set()

    def process_is(self, state: BackendState, why: str = "", *, given_up: bool = False) -> None:
        """The process of ours behind this backend does not serve, and there is nothing that it had to do."""
        backend = self.backend
        backend.process = why
        backend.given_up = given_up
        if self._asks:
            self._asks = False
            self._processes += 1
            self._asleep = False
        backend.observe(state, _OF_PROCESS.get(state, ""))
        if not state.is_coming or why:
            self._restarted()  # its slots are free, and nobody gets one

    def process_ready(self, url: str, kv_unified: bool | None = None) -> None:
        """It is back, at `url`, and says whether its slots share one context. What the last one was silent
        about says nothing of this one."""
        self.backend.says_unified = kv_unified
        self.backend.circuit.answered()
        self._asks = True
        self._processes += 1
        self.backend.process = ""
        self.backend.given_up = False
        self.backend.move_to(url)
        self._look.set()
        self._wake.set()

    async def _ask(self, path: str) -> httpx.Response:
        """Raises `httpx.HTTPError` also when the answer is not whole in time."""
        process = self._processes
        try:
            async with asyncio.timeout(ASK_S):
                answer = await self.backend.ask(path)
        except (TimeoutError, httpx.HTTPError) as error:
            if process != self._processes:
                raise _OutdatedError from error
            if isinstance(error, httpx.HTTPError):
                raise
            raise httpx.ReadTimeout(f"{path} was not answered within {ASK_S:g} s") from error
        if process != self._processes:
            raise _OutdatedError
        return answer

    # -- health

    async def _watch_health(self) -> None:
        while True:
            self._look.clear()
            if self._asks:
                with suppress(_OutdatedError):
                    await self.check()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s if self._asks else None):
                    await self._look.wait()

    @property
    def _pause_s(self) -> float:
        ready = self.backend.observed is BackendState.READY
        return self._interval_s if ready else min(0.2, self._interval_s)

    async def check(self) -> None:
        """Ask once and draw the conclusion. Raises `_OutdatedError` where there is none."""
        if self.backend.transport.heard():
            self._heard_at = asyncio.get_running_loop().time()
        self.backend.look_at_circuit()
        try:
            health = await self._ask("/health")
            if health.status_code == 503:
                self._strikes = 0
                self._restarted()
                self.backend.observe(BackendState.LOADING, "loading its model")
            elif health.status_code != 200:
                self._missed(f"/health answered {health.status_code}")
            else:
                await self._learn()
        except httpx.HTTPError as error:
            self._refused = self._refused or _is_refusal(error)
            self._missed(str(error) or type(error).__name__)

    def _restarted(self) -> None:
        """The process is a new one: nothing of what was given to the old one is in its slots, and what that
        one served says nothing about this."""
        self._refused = False
        self.slots_served = True
        self.backend.pool.restarted()
        self.backend.on_restart()
        self._on_slots()

    async def _learn(self) -> None:
        backend = self.backend
        asked_at = asyncio.get_running_loop().time()
        props = await self._ask("/props")
        if props.status_code in (401, 403):
            refuses, wants = "it refuses the gateway's key", "it wants a key, and none is configured"
            self._missed(refuses if backend.api_key else wants)
            return
        known = _object(props)
        backend.props = known
        backend.model_path = _text(known.get("model_path"))
        settings = known.get("default_generation_settings")
        n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
        backend.n_ctx = n_ctx if isinstance(n_ctx, int) else None
        total = backend.fixed_slots or known.get("total_slots")
        if not isinstance(total, int) or total < 1:
            self._missed("it does not say how many slots it has")
            return
        if backend.observed is not BackendState.READY:
            await self._learn_models(_text(known.get("model_alias")))
        self._strikes = 0
        if self._refused:
            self._restarted()
        self._sleeps(known.get("is_sleeping") is True, asked_at)
        backend.resize(total)
        backend.observe(BackendState.READY)

    def _sleeps(self, asleep: bool, asked_at: float) -> None:
        """Whoever sleeps has idle slots."""
        woke, self._asleep = self._asleep and not asleep, asleep
        pool = self.backend.pool
        closed = [slot.closed_at for slot in pool.quarantine.slots]
        if asleep and not pool.leases and closed and max(closed) < asked_at - ASLEEP_S:
            pool.restarted()
            self._on_slots()
        if woke:
            self._wake.set()

    async def _learn_models(self, alias: str | None) -> None:
        try:
            data = _object(await self._ask("/v1/models")).get("data")
        except httpx.HTTPError:
            if self._ask_models:
                raise
            return  # it can serve without saying what its model was trained for
        entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        metas = [entry.get("meta") for entry in entries]
        trained = [meta.get("n_ctx_train") for meta in metas if isinstance(meta, dict)]
        self.backend.n_ctx_train = next((size for size in trained if isinstance(size, int)), None)
        if self._ask_models:
            names = [entry.get("id") for entry in entries]
            found = tuple(name for name in names if isinstance(name, str) and name)
            self.backend.models = found or ((alias,) if alias else ())

    def _missed(self, reason: str) -> None:
        """No good answer. A backend that delivers streams is alive, whatever its health port says."""
        self._strikes += 1
        backend = self.backend
        if self._strikes < STRIKES or backend.observed is BackendState.FAILED:
            backend.reason = reason
            return
        if backend.observed in (BackendState.READY, BackendState.BUSY) and self._delivers():
            backend.observe(BackendState.BUSY, f"{reason}; its streams go on")
            return
        log.warning("backend unreachable", backend=backend.name, reason=reason)
        backend.observe(BackendState.FAILED, reason)

    def _delivers(self) -> bool:
        now = asyncio.get_running_loop().time()
        recent = self._heard_at is not None and now - self._heard_at < ALIVE_S
        return recent and bool(self.backend.pool.leases)

    # -- verified release

    async def _watch_slots(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            at = self._next_at()
            try:
                async with asyncio.timeout_at(at):
                    await self._wake.wait()
            except TimeoutError:
                pass
            at = self._next_at()
            if at is not None and loop.time() >= at:
                await self._verify()

    def _next_at(self) -> float | None:
        pool = self.backend.pool
        if not self._asks or self._asleep:
            return None
        if not self.slots_served and pool.quarantine.slots:
            return min(slot.closed_at for slot in pool.quarantine.slots) + self._quarantine_max_s
        return pool.next_probe_at() if self.slots_served else None

    async def _verify(self) -> None:
        pool = self.backend.pool
        now = asyncio.get_running_loop().time
        if not self.slots_served:
            if pool.expire(now(), self._quarantine_max_s):
                self._on_slots()
            return
        probe = pool.probe_sent(now())
        self.probes += 1
        running = await self._running()
        await asyncio.sleep(SETTLE_S)
        pool.probe_answered(probe, running, now(), frozenset(number for number, _ in running or ()))
        self._on_slots()

    async def _running(self) -> frozenset[tuple[int, str]] | None:
        """What is being processed, as slot and task; None if that cannot be known now."""
        try:
            answer = await self._ask("/slots")
        except (httpx.HTTPError, _OutdatedError):
            return None
        if answer.status_code in (404, 501):
            self.slots_served = False
            log.warning("backend does not serve /slots", backend=self.backend.name)
            return None
        slots = _content(answer)
        if not isinstance(slots, list):
            return None
        return frozenset(
            (number, str(slot.get("id_task")))
            for number, slot in enumerate(slots)
            if isinstance(slot, dict) and slot.get("is_processing")
        )


def _is_refusal(error: BaseException) -> bool:
    """Whether a connection was refused, wherever in the chain of causes it says so."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _object(answer: httpx.Response) -> dict[str, Any]:
    content = _content(answer)
    return content if isinstance(content, dict) else {}


def _content(answer: httpx.Response) -> object:
    """The JSON of a good answer, else None."""
    try:
        return orjson.loads(answer.content) if answer.status_code == 200 else None
    except orjson.JSONDecodeError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
