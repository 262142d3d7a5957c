"""What the health monitor and the slot prober conclude from a backend's answers, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from slotgate.admission import Demand, Lease, Outcome
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.health_monitor import HealthMonitor
from slotgate.gateway.backends.slot_prober import SlotProber
from tests.admission.simulation import Simulation, ignore
from tests.support.virtual_time import run_virtual

PROPS = {"total_slots": 2, "default_generation_settings": {"n_ctx": 1024}}


class Watched:
    """A backend with two slots, and its answer to each path; `None`: the connection breaks."""

    def __init__(self, **pages: Any) -> None:  # noqa: ANN401
        self.pages = {"health": {}, "props": PROPS, "v1/models": {"data": []}, "slots": []} | pages
        self.backend = Backend("gpu", "http://127.0.0.1:1", api_key=None)
        self.backend.ask = self.ask  # type: ignore[method-assign]
        self.prober = SlotProber(self.backend, quarantine_max_s=120.0, on_slots=ignore)
        self.monitor = HealthMonitor(self.backend, self.prober, interval_s=1.0, ask_models=False)

    async def __aenter__(self) -> Watched:
        self.monitor.start()
        self.prober.start()
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.monitor.stop()
        await self.prober.stop()
        await self.backend.aclose()

    async def ask(self, path: str, method: str = "GET") -> httpx.Response:
        page = self.pages[path.removeprefix("/")]
        if page is None:
            raise httpx.ReadError("it broke")
        return page if isinstance(page, httpx.Response) else httpx.Response(200, json=page)

    def lease(self) -> Lease:
        simulation = Simulation(self.backend.pool)
        simulation.now = asyncio.get_running_loop().time()
        lease = simulation.scheduler.submit(Demand("t", "m"), ignore).lease
        assert lease is not None
        lease.start()
        return lease


def test_busy_slot_stays_quarantined() -> None:
    async def course() -> list[int | None]:
        slots = [{"is_processing": True, "id_task": 7}, {"is_processing": False, "id_task": 8}]
        async with Watched(slots=slots) as watched:
            watched.backend.pool.numbered = True
            older, newer = watched.lease(), watched.lease()
            older.release(Outcome.ABANDONED)
            newer.release(Outcome.ABANDONED)
            await asyncio.sleep(3.0)
            return [slot.number for slot in watched.backend.pool.quarantine.slots]

    assert run_virtual(course()) == [0]


def test_a_backend_with_configured_models_is_ready_without_a_list_of_them() -> None:
    """The list only says for which context size the model was trained."""

    async def course() -> BackendState:
        async with Watched(**{"v1/models": None}) as watched:
            return watched.backend.state

    assert run_virtual(course()) is BackendState.READY


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "it wants a key, and none is configured"), ("k", "it refuses the gateway's key")],
)
def test_a_refused_key_and_a_missing_key_have_reasons_of_their_own(key: str | None, reason: str) -> None:
    async def course() -> str | None:
        async with Watched(props=httpx.Response(401)) as watched:
            watched.backend.api_key = key
            await asyncio.sleep(2.0)
            return watched.backend.reason

    assert run_virtual(course()) == reason
