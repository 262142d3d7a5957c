"""Reload with backends that the gateway runs: new ones are loaded, changed ones change at their next load."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.backends.state import BackendState
from tests.e2e.test_loading import endless, talk
from tests.e2e.test_reload import Configuration, reloaded
from tests.support.gateway import Gateway, ask, running_gateway
from tests.support.own import llama_command, llamas, order, own_backend, own_settings

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.real]


def slots_of(gateway: Gateway, name: str) -> tuple[BackendState, int]:
    backend = gateway.fleet.backends[name]
    return backend.state, backend.pool.total


def with_slots(model: Path, slots: int, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
    return own_backend("a", llama_command(model, slots=slots), **rest)


async def next_load_of(gateway: Gateway) -> list[str]:
    status, said = await reloaded(gateway)
    assert (status, said["needs_restart"]) == (200, [])
    next_load: list[str] = said["next_load"]
    return next_load


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_a_changed_command_is_used_by_the_next_process(tiny_model: Path, end: str) -> None:
    file = Configuration(own_settings(with_slots(tiny_model, 1)))
    async with running_gateway(file.load(), load=file.load) as gateway:
        async with endless(gateway, "a"):
            file.settings = own_settings(with_slots(tiny_model, 2))
            assert await next_load_of(gateway) == ["backend.a"]
            assert slots_of(gateway, "a") == (BackendState.READY, 1)
            if end == "crash":
                [pid] = llamas()
                os.kill(pid, signal.SIGKILL)
        if end == "restart":
            await order(gateway.url, "a", "restart")
        await gateway.until(lambda: slots_of(gateway, "a") == (BackendState.READY, 2))
        assert (await talk(gateway, "a")).status == 200
        assert await next_load_of(gateway) == []


async def test_the_models_of_a_changed_backend_change_with_its_process(tiny_model: Path) -> None:
    file = Configuration(own_settings(with_slots(tiny_model, 1)))
    async with running_gateway(file.load(), load=file.load) as gateway:
        file.settings = own_settings(with_slots(tiny_model, 2, models=["other"]))
        await reloaded(gateway)
        assert [(await talk(gateway, model)).status for model in ("a", "other")] == [200, 404]
        await order(gateway.url, "a", "restart")
        await gateway.until(lambda: slots_of(gateway, "a") == (BackendState.READY, 2))
        assert [(await talk(gateway, model)).status for model in ("a", "other")] == [404, 200]


async def test_a_process_that_does_not_run_takes_a_changed_command_at_once(tiny_model: Path) -> None:
    file = Configuration(own_settings(with_slots(tiny_model, 1, load="demand")))
    async with running_gateway(file.load(), load=file.load, ready=False) as gateway:
        file.settings = own_settings(with_slots(tiny_model, 2, load="demand"))
        assert await next_load_of(gateway) == []
        assert (await talk(gateway, "a")).status == 200
        assert slots_of(gateway, "a") == (BackendState.READY, 2)


@pytest.mark.parametrize("load", ["start", "demand"])
async def test_a_new_backend_is_served(tiny_model: Path, load: str) -> None:
    first = with_slots(tiny_model, 1)
    file = Configuration(own_settings(first))
    async with running_gateway(file.load(), load=file.load) as gateway:
        new = own_backend("b", llama_command(tiny_model), load=load)
        file.settings = own_settings(first, new)
        assert await next_load_of(gateway) == []
        if load == "start":
            await gateway.until(lambda: slots_of(gateway, "b")[0] is BackendState.READY, 30)
        assert (await talk(gateway, "b")).status == 200
        assert (await talk(gateway, "a")).status == 200
        assert len(llamas()) == 2


async def test_settings_beside_the_command_and_groups_take_effect_at_once(tiny_model: Path) -> None:
    both = [own_backend(name, llama_command(tiny_model), load="demand") for name in "ab"]
    file = Configuration(own_settings(*both))
    async with running_gateway(file.load(), load=file.load, ready=False) as gateway:
        for model in "ab":
            assert (await talk(gateway, model)).status == 200
        assert len(llamas()) == 2
        file.settings = own_settings(*({**entry, "idle_unload_s": 0.1} for entry in both), max_loaded=1)
        assert await next_load_of(gateway) == []
        await gateway.until(lambda: not llamas(), 30)
        assert (await talk(gateway, "a")).status == 200


async def test_models_may_be_listed_and_asked_for_by_turns(tiny_model: Path) -> None:
    listed, asked = with_slots(tiny_model, 1), with_slots(tiny_model, 1, models=[])
    file = Configuration(own_settings(listed))
    async with running_gateway(file.load(), load=file.load) as gateway:
        backend = gateway.fleet.backends["a"]
        for entry in (asked, listed):
            file.settings = own_settings(entry)
            await next_load_of(gateway)
            await gateway.until(lambda: "a" in gateway.fleet.catalogue.models)
            assert (await talk(gateway, "a")).status == 200
        assert gateway.fleet.backends["a"] is backend
        await order(gateway.url, "a", "restart")
        await gateway.until(lambda: slots_of(gateway, "a")[0] is not BackendState.READY)
        await gateway.until(lambda: slots_of(gateway, "a")[0] is BackendState.READY)


async def test_a_new_backend_isolates_tenants(tiny_model: Path) -> None:
    first, new = with_slots(tiny_model, 1), own_backend("b", llama_command(tiny_model))
    tenant = {"name": "t", "key_hashes": [hash_key("sg-t")], "isolate_cache": True, "models": ["b"]}
    file = Configuration(own_settings(first, tenant=[tenant | {"models": ["a"], "isolate_cache": False}]))
    async with running_gateway(file.load(), load=file.load) as gateway:
        file.settings = own_settings(first, new, tenant=[tenant])
        await next_load_of(gateway)
        await gateway.until(lambda: slots_of(gateway, "b")[0] is BackendState.READY, 30)
        for _ in range(3):
            assert (
                await ask(gateway.url, b"x-api-key: sg-t", model="b", stream=False, max_tokens=4)
            ).status == 200


async def test_a_removed_backend_keeps_its_group(tiny_model: Path) -> None:
    both = [own_backend(name, llama_command(tiny_model), load="demand") for name in "ab"]
    file = Configuration(own_settings(*both, max_loaded=1))
    async with running_gateway(file.load(), load=file.load, ready=False) as gateway:
        file.settings = own_settings(own_backend("c", llama_command(tiny_model), load="demand"))
        assert (await reloaded(gateway))[1]["needs_restart"] == ["backend.a", "backend.b"]
        assert (await talk(gateway, "a")).status == 200


async def test_a_second_tenant_is_named_as_a_change_of_the_command_line(tiny_model: Path) -> None:
    first = with_slots(tiny_model, 1)
    tenants = [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in "ab"]
    file = Configuration(own_settings(first, tenant=tenants[:1]))
    async with running_gateway(file.load(), load=file.load) as gateway:
        file.settings = own_settings(first, tenant=tenants)
        assert await next_load_of(gateway) == ["backend.a"]
        assert (
            await ask(gateway.url, b"x-api-key: sg-b", model="a", stream=False, max_tokens=4)
        ).status == 200
