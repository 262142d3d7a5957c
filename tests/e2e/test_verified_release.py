"""Verified release in special cases: restarts, shared backends, backends that do not serve `/slots`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slotgate.admission import quarantine
from tests.support.client import read_stream
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, answer, chunked, error_body
from tests.support.script import Paced, Rst, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

HELD: Script = [Write(H + chunked(T("a"))), Stall()]


async def abandon_one(gateway: Gateway, fu: ScriptedUpstream) -> None:
    """Let a client leave mid-stream. The backend goes on to show a busy slot."""
    fu.llama.foreign = 1
    async with await gateway.client() as client:
        await client.post(CHAT, chat())
    pool = gateway.fleet.backends["gpu0"].pool
    await gateway.until(lambda: len(pool.quarantine) == 1)


def shared_settings(url: str) -> dict[str, Any]:
    return {"name": "gpu0", "url": url, "models": ["m"], "health_interval_s": 0.2, "shared": True}


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", ["loading", "at once"])
async def test_a_restart_of_the_backend_frees_its_quarantined_slots(comes_back: str) -> None:
    """`/slots` goes on to show a busy slot, so only the restart can have freed it."""
    fu = ScriptedUpstream(scripts={CHAT: HELD})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        await abandon_one(gateway, fu)
        assert pool.free == 0
        if comes_back == "loading":
            fu.llama.loading = True
            await gateway.until(lambda: not gateway.fleet.ready)
            fu.llama.loading = False
        else:
            fu.stop_listening()
            fu.abort_all()
            await gateway.until(lambda: not gateway.fleet.ready)
            await fu.listen()
        await gateway.until(lambda: pool.admitting and pool.free == 1)


@pytest.mark.slow
async def test_foreign_work_on_a_shared_backend_lowers_the_granted_slots_while_it_lasts() -> None:
    fu = ScriptedUpstream()
    fu.llama.total_slots = 2
    async with fu:
        fu.llama.foreign = 1
        async with running_gateway(settings_for(backend=[shared_settings(fu.url)])) as gateway:
            pool = gateway.fleet.backends["gpu0"].pool
            await gateway.until(lambda: pool.foreign == 1, within=4)
            assert pool.free == 1
            fu.llama.foreign = 0
            await gateway.until(lambda: pool.free == 2, within=4)


@pytest.mark.slow
@pytest.mark.parametrize("status", [404, 501])
async def test_without_slots_to_ask_a_slot_returns_after_the_longest_doubt(status: int) -> None:
    refusal: Script = [Write(answer(status, error_body(status, "no", "not_supported_error")))]
    fu = ScriptedUpstream(scripts={CHAT: HELD, "/slots": refusal})
    fu.llama.total_slots = 1
    admission = {"quarantine_max_s": 0.6}
    async with fu, running_gateway(settings_for(fu.url, admission=admission)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        await abandon_one(gateway, fu)
        await gateway.until(lambda: pool.free == 1)
        fu.scripts.pop(CHAT)
        fu.llama.foreign = 0
        assert (await read_stream(gateway.url, CHAT, chat()))[-1].data == DONE


REFUSALS: dict[str, Script] = {
    str(status): [Write(answer(status, error_body(status, "no", "server_error")))]
    for status in (400, 401, 403, 500, 503)
}
UNREADABLE = REFUSALS | {
    "page": [Write(answer(200, b"<html>"))],
    "object": [Write(answer(200, {"slots": []}))],
    "reset": [Rst()],
    "silence": [Stall()],
}


@pytest.mark.slow
@pytest.mark.parametrize("slots", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_slot_returns_although_slots_can_never_be_read(
    slots: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotgate.gateway.backends.control_query.ASK_S", 0.2)
    fu = ScriptedUpstream(scripts={CHAT: HELD, "/slots": slots})
    fu.llama.total_slots = 1
    admission = {"quarantine_max_s": 2.5}
    async with fu, running_gateway(settings_for(fu.url, admission=admission)) as gateway:
        backend = gateway.fleet.backends["gpu0"]
        await abandon_one(gateway, fu)
        await gateway.until(lambda: backend.explanation.startswith("/slots cannot be read"), within=4)
        assert backend.pool.free == 0
        await gateway.until(lambda: backend.pool.free == 1, within=4)
        assert backend.pool.unverified == 1
        assert [event["event"] for event in gateway.log.events].count("cannot read /slots") == 1
        fu.scripts.pop(CHAT)
        fu.llama.foreign = 0
        assert (await read_stream(gateway.url, CHAT, chat()))[-1].data == DONE


async def test_a_restarted_backend_may_serve_slots_although_the_one_before_did_not() -> None:
    refusal: Script = [Write(answer(501, error_body(501, "no", "not_supported_error")))]
    fu = ScriptedUpstream(scripts={CHAT: HELD, "/slots": refusal})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        prober = gateway.fleet.probers["gpu0"]
        await abandon_one(gateway, fu)
        await gateway.until(lambda: not prober.slots_served)
        fu.llama.loading = True
        await gateway.until(lambda: not gateway.fleet.ready)
        fu.llama.loading = False
        await gateway.until(lambda: gateway.fleet.ready)
        assert prober.slots_served


DRIPPING: Script = [Write(H), Paced(20)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "nonsense",
    [[Write(answer(200, b"nonsense"))], [Write(answer(200, b"[" * 100_000))], DRIPPING],
    ids=["text", "deep", "dripping"],
)
async def test_an_answer_that_cannot_be_read_changes_nothing(
    nonsense: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotgate.gateway.backends.control_query.ASK_S", 0.3)
    fu = ScriptedUpstream(scripts={CHAT: HELD, "/slots": nonsense})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        await abandon_one(gateway, fu)
        prober = gateway.fleet.probers["gpu0"]
        await gateway.until(lambda: prober.probes == 2, within=4)
        assert len(pool.quarantine) == 1
        del fu.scripts["/slots"]
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 1, within=4)


async def test_new_gateway_gives_out_no_slot_that_is_busy_already() -> None:
    """A gateway that was killed has left its request in the only slot."""
    fu = ScriptedUpstream(llama=LlamaLike(1))
    fu.llama.foreign = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        assert (pool.total, pool.free, pool.foreign) == (1, 0, 1)
        asked = asyncio.create_task(read_stream(gateway.url, CHAT, chat()))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        assert not fu.generations
        fu.llama.foreign = 0
        assert (await asked)[-1].data == DONE
        assert fu.llama.deferred == 0


@pytest.mark.parametrize("slots", REFUSALS.values(), ids=REFUSALS.keys())
async def test_new_gateway_serves_although_slots_cannot_be_read(slots: Script) -> None:
    fu = ScriptedUpstream(scripts={"/slots": slots}, llama=LlamaLike(1))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await read_stream(gateway.url, CHAT, chat()))[-1].data == DONE


async def test_no_probe_is_sent_while_nothing_is_in_doubt() -> None:
    """The query before the first grant is not a probe of a slot in doubt."""
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert [request.path for request in fu.requests].count("/slots") == 1
        fu.requests.clear()
        for _ in range(3):
            await read_stream(gateway.url, CHAT, chat())
        assert not any(request.path == "/slots" for request in fu.requests)


async def test_scenario_015_a_slot_that_stays_busy_stays_out_and_its_age_is_shown() -> None:
    fu = ScriptedUpstream(scripts={CHAT: HELD})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        await abandon_one(gateway, fu)
        prober = gateway.fleet.probers["gpu0"]
        await gateway.until(lambda: prober.probes == 2, within=4)
        status = pool.status(asyncio.get_running_loop().time())
        assert (status.quarantined, status.idle) == (1, 0)
        assert status.quarantined_oldest_s > quarantine.SPACING_S
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 1, within=4)
