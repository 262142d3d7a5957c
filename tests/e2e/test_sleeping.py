"""llama-server's own sleep: it unloads its model by itself, and a query of its slots would wake it."""

from __future__ import annotations

import orjson
import pytest

from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer
from tests.support.script import Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


def props(*, asleep: bool) -> list[Write]:
    return [Write(answer(200, orjson.dumps({"total_slots": 4, "is_sleeping": asleep})))]


@pytest.mark.slow
async def test_a_sleeping_server_is_not_asked_for_its_slots_and_they_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotgate.gateway.backends.slot_prober.ASLEEP_S", 0.0)
    fu = ScriptedUpstream(llama=LlamaLike(tokens=100_000, rate=200.0))
    fu.scripts["/props"] = props(asleep=False)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        fu.requests.clear()
        fu.scripts["/props"] = props(asleep=True)
        fu.llama.foreign = 1
        await gateway.until(lambda: gateway.fleet.backends["gpu0"].props.get("is_sleeping"))
        async with await gateway.client() as client:
            await client.post(CHAT, chat())
            await anext(client.frames())
        await gateway.until(lambda: pool.released and not pool.leases)
        await gateway.until(lambda: pool.free == 4)
        asked = [request.path for request in fu.requests if request.path == "/slots"]
    assert asked == []


@pytest.mark.slow
async def test_a_server_that_woke_is_asked_again() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(tokens=100_000, rate=200.0))
    fu.scripts["/props"] = props(asleep=True)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool
        async with await gateway.client() as client:
            await client.post(CHAT, chat())
            await anext(client.frames())
        await gateway.until(lambda: len(pool.quarantine) == 1)
        fu.scripts["/props"] = props(asleep=False)
        await gateway.until(lambda: pool.free == 4)
        assert [request.path for request in fu.requests if request.path == "/slots"]
