"""The conclusions of the health monitor and the slot prober from a backend's answers, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from slotgate.admission import Demand, Lease, Outcome
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.control_query import ASK_S
from slotgate.gateway.backends.health_monitor import HealthMonitor
from slotgate.gateway.backends.slot_prober import SlotProber
from tests.admission.simulation import Simulation, ignore
from tests.support.virtual_time import run_virtual

HANGS = object()
"""A page that is never answered."""
PROPS = {"total_slots": 2, "default_generation_settings": {"n_ctx": 1024}}


class MonitoredBackend:
    """A backend with two slots, and its answer to each path. `None` breaks the connection."""

    def __init__(self, **pages: Any) -> None:  # noqa: ANN401
        self.pages = {"health": {}, "props": PROPS, "v1/models": {"data": []}, "slots": []} | pages
        self.later = {"slots": self.pages["slots"]}
        self.pages["slots"] = []  # as the first look, before the first grant, finds them
        self.backend = Backend("gpu", "http://gpu.example:1", api_key=None)
        self.backend.ask = self.ask  # type: ignore[method-assign]
        self.prober = SlotProber(self.backend, quarantine_max_s=120.0, on_slots=ignore)
        self.monitor = HealthMonitor(self.backend, self.prober, interval_s=1.0, ask_models=False)

    async def __aenter__(self) -> MonitoredBackend:
        self.monitor.start()
        self.prober.start()
        await asyncio.sleep(0.5)
        self.pages |= self.later
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.monitor.stop()
        await self.prober.stop()
        await self.backend.aclose()

    async def ask(self, path: str, method: str = "GET") -> httpx.Response:
        page = self.pages[path.removeprefix("/")]
        if page is HANGS:
            await asyncio.Event().wait()
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
        async with MonitoredBackend(slots=slots) as watched:
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
        async with MonitoredBackend(**{"v1/models": None}) as watched:
            return watched.backend.state

    assert run_virtual(course()) is BackendState.READY


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "it needs a key, and none is configured"), ("k", "it refuses the gateway's key")],
)
def test_a_refused_key_and_a_missing_key_have_reasons_of_their_own(key: str | None, reason: str) -> None:
    async def course() -> str | None:
        async with MonitoredBackend(props=httpx.Response(401)) as watched:
            watched.backend.api_key = key
            await asyncio.sleep(2.0)
            return watched.backend.reason

    assert run_virtual(course()) == reason


def busy(task: int = 7) -> list[dict[str, Any]]:
    return [{"is_processing": True, "id_task": task}, {"is_processing": False, "id_task": 8}]


def free_slots(*, pages: dict[str, Any], at: float, until: float) -> tuple[int, int]:
    """Abandon one of two slots, change `pages` at a time, and return the free slots then and at the end."""

    async def course() -> tuple[int, int]:
        async with MonitoredBackend(slots=busy()) as watched:
            watched.lease().release(Outcome.ABANDONED)
            await asyncio.sleep(at)
            watched.pages |= pages
            before = watched.backend.pool.free
            await asyncio.sleep(until - at)
            return before, watched.backend.pool.free

    return run_virtual(course())


def test_slot_that_slots_shows_busy_outlives_the_limit() -> None:
    assert free_slots(pages={}, at=1, until=1000) == (1, 1)


@pytest.mark.parametrize("fault", [None, httpx.Response(500), httpx.Response(403), {}])
def test_busy_slot_returns_when_slots_can_not_be_read_any_more(fault: object) -> None:
    """The limit counts from the last answer that showed the slot."""
    assert free_slots(pages={"slots": fault}, at=100, until=210) == (1, 1)
    assert free_slots(pages={"slots": fault}, at=100, until=230) == (1, 2)


def test_unverified_slot_waits_for_good_health() -> None:
    sick = {"slots": None, "health": httpx.Response(500)}
    assert free_slots(pages=sick, at=10, until=1000)[1] == 1

    async def course() -> tuple[int, int]:
        async with MonitoredBackend(slots=None, health={}) as watched:
            watched.lease().release(Outcome.ABANDONED)
            await asyncio.sleep(10)
            watched.pages["health"] = httpx.Response(500)
            await asyncio.sleep(500)
            before = watched.backend.pool.free
            watched.pages["health"] = {}
            await asyncio.sleep(2)
            return before, watched.backend.pool.free

    assert run_virtual(course()) == (1, 2)


def test_foreign_work_ends_when_slots_can_not_be_read_any_more() -> None:
    async def course() -> tuple[int, int]:
        async with MonitoredBackend(slots=busy()) as watched:
            watched.backend.pool.quarantine.shared = True
            watched.prober.adjust(quarantine_max_s=120)
            await asyncio.sleep(10)
            before = watched.backend.pool.foreign
            watched.pages["slots"] = httpx.Response(500)
            await asyncio.sleep(130)
            return before, watched.backend.pool.foreign

    assert run_virtual(course()) == (1, 0)


def test_short_limit_frees_nothing_while_answers_come() -> None:
    async def course() -> int:
        async with MonitoredBackend(slots=busy()) as watched:
            watched.prober.adjust(quarantine_max_s=0.5)
            watched.lease().release(Outcome.ABANDONED)
            await asyncio.sleep(30)
            return watched.backend.pool.free

    assert run_virtual(course()) == 1


def test_new_gateway_counts_busy_slots_as_foreign_until_they_are_idle() -> None:
    async def course() -> tuple[int, int, int]:
        async with MonitoredBackend() as watched:
            first = watched.backend.pool.free
        watched = MonitoredBackend()
        watched.pages["slots"] = busy()
        async with watched:
            before = watched.backend.pool.free
            await asyncio.sleep(5)
            return first, before, watched.backend.pool.free

    assert run_virtual(course()) == (2, 1, 2)


@pytest.mark.parametrize("total", [True, 0, -1, 3_000_000, 10**30, "2", 2.0, None])
def test_number_of_slots_that_cannot_be_is_not_believed(total: object) -> None:
    async def main() -> None:
        async with MonitoredBackend(props=PROPS | {"total_slots": total}) as monitored:
            assert monitored.backend.pool.total == 0
            assert "how many slots" in monitored.backend.explanation

    run_virtual(main())


@pytest.mark.parametrize("n_ctx", [True, 0, 10**30, "1024"])
def test_context_that_cannot_be_is_not_believed(n_ctx: object) -> None:
    async def main() -> None:
        props = PROPS | {"default_generation_settings": {"n_ctx": n_ctx}}
        async with MonitoredBackend(props=props) as monitored:
            assert monitored.backend.n_ctx is None
            assert monitored.backend.state is BackendState.READY

    run_virtual(main())


@pytest.mark.parametrize("fault", [HANGS, None, httpx.Response(500)], ids=["hangs", "breaks", "500"])
def test_scenario_103_a_backend_that_is_too_busy_to_tell_its_health_stays_up_while_it_delivers(
    fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def course() -> list[BackendState]:
        states = []
        async with MonitoredBackend() as watched:
            watched.lease()
            delivers = True
            monkeypatch.setattr(watched.backend.transport, "heard", lambda: delivers)
            watched.pages["health"] = fault
            await asyncio.sleep(200)
            states.append(watched.backend.state)
            delivers = False
            await asyncio.sleep(60)
            states.append(watched.backend.state)
            watched.pages["health"] = {}
            await asyncio.sleep(10)
            return [*states, watched.backend.state]

    assert run_virtual(course()) == [BackendState.BUSY, BackendState.UNREACHABLE, BackendState.READY]


def test_scenario_103_a_backend_without_streams_that_hangs_is_down_after_two_health_checks() -> None:
    async def course() -> list[BackendState]:
        async with MonitoredBackend() as watched:
            watched.pages["health"] = HANGS
            await asyncio.sleep(1.5)
            states = [watched.backend.state]
            await asyncio.sleep(2 * (1.0 + ASK_S))
            return [*states, watched.backend.state]

    assert run_virtual(course()) == [BackendState.READY, BackendState.UNREACHABLE]
