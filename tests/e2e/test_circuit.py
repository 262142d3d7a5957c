"""A backend with good health whose streams are silent, and one with streams that flow whose health is bad."""

from __future__ import annotations

import asyncio

import pytest

from slotgate.gateway.backends.circuit_breaker import CircuitState
from slotgate.gateway.backends.state import BackendState
from tests.support.answer import fetch
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, answer, error_body
from tests.support.own import llamas, own_backend, own_settings, shown
from tests.support.processes import child_program
from tests.support.script import Script, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

SILENT: Script = [Write(H), Stall()]
IMPATIENT = {"first_byte_s": 0.5}


@pytest.mark.slow
async def test_scenario_017_three_silences_in_a_row_open_the_circuit_and_one_trial_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: SILENT})
    async with fu, running_gateway(settings_for(fu.url, timeouts=IMPATIENT)) as gateway:
        backend = gateway.fleet.backends["gpu0"]
        codes = [(await ask(gateway.url)).error["code"] for _ in range(3)]
        assert codes == ["first_byte_timeout"] * 3
        states = [backend.state]
        ready = await fetch(gateway.url, "GET", "/ready")
        assert ready.status == 503
        assert "3 requests in a row" in ready.json["backends"][0]["reason"]

        fu.scripts[CHAT] = stream(T("a"), DONE)
        waiting = [asyncio.create_task(ask(gateway.url)) for _ in range(3)]
        await gateway.until(lambda: gateway.scheduler.depth == 3)
        asked = len(fu.generations)
        monkeypatch.setattr("slotgate.gateway.backends.circuit_breaker.REST_S", 0.0)
        answers = await asyncio.gather(*waiting)
        assert [got.status for got in answers] == [200] * 3
        assert len(fu.generations) == asked + 3
        assert [*states, backend.state] == [BackendState.SILENT, BackendState.READY]


@pytest.mark.slow
async def test_scenario_123_a_process_that_lives_and_does_nothing_is_restarted() -> None:
    command = list(child_program("mute"))
    settings = own_settings(own_backend("a", command, slots=4), timeouts=IMPATIENT)
    async with running_gateway(settings) as gateway:
        before = llamas()
        codes = [(await ask(gateway.url, model="a")).error["code"] for _ in range(3)]
        await gateway.until(lambda: gateway.fleet.ready and llamas() and llamas() != before)
        circuit = gateway.fleet.backends["a"].circuit.state
    assert codes == ["first_byte_timeout"] * 3
    assert circuit is CircuitState.CLOSED


async def test_the_silence_before_an_answer_that_is_no_stream_says_nothing() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]})
    async with fu, running_gateway(settings_for(fu.url, timeouts={"first_byte_s": 0.05})) as gateway:
        statuses = [(await ask(gateway.url, stream=False)).status for _ in range(4)]
        states = await shown(gateway.url)
    assert (statuses, states) == ([504] * 4, {"gpu0": "ready"})


async def test_a_prompt_that_is_too_long_is_the_client_s_fault_and_opens_nothing() -> None:
    refusal = answer(400, error_body(400, "too long", "exceed_context_size_error"))
    fu = ScriptedUpstream(scripts={CHAT: [Write(refusal)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        statuses = [(await ask(gateway.url)).status for _ in range(5)]
        assert statuses == [400] * 5
        assert gateway.fleet.backends["gpu0"].state is BackendState.READY


@pytest.mark.slow
async def test_scenario_103_a_backend_whose_streams_go_on_keeps_them_and_gets_no_new_ones() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(tokens=100_000, rate=200.0))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        backend = gateway.fleet.backends["gpu0"]
        async with await gateway.client() as client, await gateway.client() as second:
            await client.post(CHAT, chat())
            frames = client.frames()
            await anext(frames)
            fu.scripts["/health"] = [Write(answer(500, b"{}"))]
            await gateway.until(lambda: backend.state is BackendState.BUSY)
            shown = (await fetch(gateway.url, "GET", "/ready")).json["backends"]
            await second.send(request_bytes("POST", CHAT, json=chat()))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            leases = backend.pool.leased
            del fu.scripts["/health"]
            await gateway.until(lambda: backend.pool.leased == 2)
            await anext(frames)
    assert [entry["state"] for entry in shown] == ["busy-unreachable"]
    assert shown[0]["reason"] == "/health answered 500; its streams go on"
    assert leases == 1
