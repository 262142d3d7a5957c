"""Reload with backends that the gateway runs: new ones are loaded, changed ones change at their next load."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.backends.state import BackendState
from tests.e2e.test_loading import endless, talk
from tests.e2e.test_reload import Configuration, reloaded
from tests.support.gateway import Gateway, running_gateway
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
