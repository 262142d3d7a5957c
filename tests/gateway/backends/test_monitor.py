"""What a monitor makes of what its backend says, on virtual time."""

import asyncio
from typing import Any

import httpx
import pytest

from slotgate.admission import Demand, Lease, Outcome
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.monitor import Monitor
from tests.admission.simulation import Simulation, ignore
from tests.support.virtual_time import run_virtual

PROPS = {"total_slots": 2, "default_generation_settings": {"n_ctx": 1024}}


class Watched:
    """A backend with two slots, and what it answers to each path; `None`: its connection breaks."""

    def __init__(self, **pages: Any) -> None:  # noqa: ANN401
        self.pages = {"health": {}, "props": PROPS, "v1/models": {"data": []}, "slots": []} | pages
        self.backend = Backend("gpu", "http://127.0.0.1:1", api_key=None)
        self.backend.ask = self.ask  # type: ignore[method-assign]
        self.monitor = Monitor(
            self.backend, interval_s=1.0, quarantine_max_s=120.0, ask_models=False, on_slots=ignore
        )
        self.backend.pool.on_quarantine = self.monitor.nudge

    async def __aenter__(self) -> "Watched":
        self.monitor.start()
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.monitor.stop()
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


def test_of_two_abandoned_slots_the_one_stays_out_that_the_backend_shows_busy() -> None:
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


def test_a_backend_whose_models_are_configured_is_ready_without_a_list_of_them() -> None:
    """It is asked for the list only to learn what the model was trained for."""

    async def course() -> BackendState:
        async with Watched(**{"v1/models": None}) as watched:
            return watched.backend.state

    assert run_virtual(course()) is BackendState.READY


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "it wants a key, and none is configured"), ("k", "it refuses the gateway's key")],
)
def test_a_backend_that_wants_another_key_is_told_from_one_that_got_none(
    key: str | None, reason: str
) -> None:
    async def course() -> str | None:
        async with Watched(props=httpx.Response(401)) as watched:
            watched.backend.api_key = key
            await asyncio.sleep(2.0)
            return watched.backend.reason

    assert run_virtual(course()) == reason
