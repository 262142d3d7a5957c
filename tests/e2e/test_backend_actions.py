"""The operators' actions on a backend while requests run: drain, resume, load, unload and restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slotgate.gateway.backends.backend import BackendState
from tests.support.answer import fetch
from tests.support.client import RawClient
from tests.support.gateway import CHAT, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.own import OPERATOR, SERVER, llama_command, order, own_backend, own_settings, shown
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


def slow() -> ScriptedUpstream:
    return ScriptedUpstream(llama=LlamaLike(slots=1, tokens=100_000, rate=200.0))


async def streaming(client: RawClient) -> None:
    await client.post(CHAT, chat())
    await anext(client.frames())


@pytest.mark.slow
async def test_a_drained_backend_finishes_its_requests_and_gets_no_new_ones() -> None:
    async with slow() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        async with await gateway.client() as running:
            await streaming(running)
            answer = await order(gateway.url, "gpu0", "drain")
            refused = await ask(gateway.url)
            await anext(running.frames())
            states = await shown(gateway.url)
            ready = (await fetch(gateway.url, "GET", "/ready")).status
    assert (answer.status, answer.json["state"], answer.json["active"]) == (200, "draining", 1)
    assert (refused.status, refused.error["code"]) == (503, "no_backend")
    assert "drained by an operator" in refused.error["message"]
    assert (states, ready) == ({"gpu0": "draining"}, 503)


@pytest.mark.slow
async def test_requests_that_wait_only_for_a_drained_backend_fail_at_once() -> None:
    async with slow() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        async with await gateway.client() as running:
            await streaming(running)
            waiting = asyncio.create_task(ask(gateway.url))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            await order(gateway.url, "gpu0", "drain")
            got = await waiting
    assert (got.status, got.error["code"]) == (503, "no_backend")


@pytest.mark.slow
async def test_waiting_requests_move_to_another_backend() -> None:
    async with slow() as fu, ScriptedUpstream() as other:
        settings = settings_for(fu.url, other.url, server=SERVER)
        async with running_gateway(settings) as gateway:
            await order(gateway.url, "gpu1", "drain")
            async with await gateway.client() as running:
                await streaming(running)
                waiting = asyncio.create_task(ask(gateway.url))
                await gateway.until(lambda: gateway.scheduler.depth == 1)
                await order(gateway.url, "gpu1", "resume")
                await order(gateway.url, "gpu0", "drain")
                got = await waiting
        assert got.status == 200
        assert len(other.generations) == 1


async def test_resume_ends_drain() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        await order(gateway.url, "gpu0", "drain")
        await gateway.until(lambda: gateway.fleet.backends["gpu0"].props)
        resumed = await order(gateway.url, "gpu0", "resume")
        got = await ask(gateway.url)
    assert (resumed.status, resumed.json["state"], got.status) == (200, "ready", 200)


async def test_the_status_lists_the_possible_actions_of_a_backend_with_a_url() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        status = await fetch(gateway.url, "GET", "/admin/status", OPERATOR)
        drained = await order(gateway.url, "gpu0", "drain")
    assert [backend["orders"] for backend in status.json["backends"]] == [["drain"]]
    assert drained.json["orders"] == ["resume"]


async def test_the_status_lists_the_possible_actions_of_a_process(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model)))
    async with running_gateway(settings, ready=False) as gateway:
        await gateway.until(lambda: gateway.fleet.ready)
        status = await fetch(gateway.url, "GET", "/admin/status", OPERATOR)
        assert [backend["orders"] for backend in status.json["backends"]] == [["drain", "restart", "unload"]]
        await order(gateway.url, "a", "unload")
        await gateway.until(lambda: gateway.fleet.backends["a"].state is BackendState.STOPPED)
        status = await fetch(gateway.url, "GET", "/admin/status", OPERATOR)
        assert [backend["orders"] for backend in status.json["backends"]] == [["drain", "load"]]


@pytest.mark.parametrize("word", ["drain", "resume", "load", "unload", "restart"])
async def test_an_action_on_an_unknown_backend_is_404(word: str) -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        got = await order(gateway.url, "nobody", word)
    assert (got.status, got.error["code"]) == (404, "backend_not_found")


@pytest.mark.parametrize("word", ["load", "unload", "restart"])
async def test_an_action_that_needs_a_process_is_409_for_a_backend_with_a_url(word: str) -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        got = await order(gateway.url, "gpu0", word)
    assert (got.status, got.error["code"]) == (409, "not_a_process")


async def test_actions_need_an_operator_key() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        path = "/admin/backends/gpu0/drain"
        statuses = [
            (await fetch(gateway.url, "POST", path)).status,
            (await fetch(gateway.url, "POST", path, b"authorization: Bearer sg-other")).status,
            (await fetch(gateway.url, "GET", path, OPERATOR)).status,
        ]
        states = await shown(gateway.url)
    assert statuses == [401, 401, 405]
    assert states == {"gpu0": "ready"}
