"""Real llama-servers of the gateway's own: loaded on demand, swapped, unloaded, killed, restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.state import BackendState
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.restart_policy import RestartLimits
from tests.support.answer import WholeResponse, fetch
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, data_of, error_in, running_gateway
from tests.support.leaks import child_processes
from tests.support.own import (
    OPERATOR,
    SERVER,
    llama_command,
    llamas,
    order,
    own_backend,
    own_settings,
    shown,
)

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.real]

PATIENCE_S = 30.0
DEMAND = {"load": "demand"}
UNMERGED: dict[str, Any] = {"max_tokens": 6000, "logprobs": True, "top_logprobs": 20}
"""An answer of many megabytes: frames with probabilities are not merged for a client that is behind."""


async def talk(gateway: Gateway, model: str, tokens: int = 4) -> WholeResponse:
    """Ask for a short answer, and return it whole."""
    request = request_bytes("POST", CHAT, json=chat(model=model, max_tokens=tokens, stream=False))
    async with await gateway.client() as client:
        await client.send(request)
        head = await client.head(PATIENCE_S)
        return WholeResponse(client.status, head, await client.body(PATIENCE_S))


@asynccontextmanager
async def endless(gateway: Gateway, model: str) -> AsyncIterator[RawClient]:
    """Run a stream that goes on until the client leaves."""
    async with await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=chat(model=model, max_tokens=1_000_000)))
        await client.head(PATIENCE_S)
        await anext(client.frames(PATIENCE_S))
        yield client


def has_state(backend: Backend, state: BackendState) -> bool:
    return backend.state is state


def both(model: Path, **rest: object) -> tuple[dict[str, object], dict[str, object]]:
    command = llama_command(model)
    return own_backend("a", command, **DEMAND, **rest), own_backend("b", command, **DEMAND, **rest)


async def test_a_model_is_loaded_for_its_first_request_and_no_earlier(tiny_model: Path) -> None:
    async with running_gateway(own_settings(*both(tiny_model)), ready=False) as gateway:
        before = (len(llamas()), await shown(gateway.url), (await fetch(gateway.url, "GET", "/ready")).status)
        got = await talk(gateway, "a")
        after = (len(llamas()), await shown(gateway.url))
    assert before == (0, {"a": "stopped", "b": "stopped"}, 200)
    assert got.status == 200, got
    assert after == (1, {"a": "ready", "b": "stopped"})


async def test_while_a_model_loads_the_client_gets_keepalives_and_its_time_in_the_queue_stands_still(
    tiny_model: Path,
) -> None:
    slow = own_backend("a", llama_command(tiny_model, before="sleep 1.2"), **DEMAND)
    settings = own_settings(slow, admission={"queue_timeout_s": 0.3}, streaming={"keepalive_interval_s": 0.1})
    async with running_gateway(settings, ready=False) as gateway:
        async with await gateway.client() as client:
            await client.send(request_bytes("POST", CHAT, json=chat(model="a", max_tokens=3)))
            await client.head(PATIENCE_S)
            frames = [frame async for frame in client.frames(PATIENCE_S)]
    assert frames[0].data == b": keep-alive\n\n"
    assert b"[DONE]" in frames[-1].data
    assert data_of(frames)


async def test_two_models_of_a_group_of_one_swap_under_load_and_no_stream_is_cut(tiny_model: Path) -> None:
    async with running_gateway(own_settings(*both(tiny_model), max_loaded=1), ready=False) as gateway:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(llamas()))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(talk(gateway, "ab"[number % 2], 200) for number in range(12)))
        watching.cancel()
    assert [got.status for got in answers] == [200] * 12
    assert most == 1


async def test_a_running_stream_is_waited_for_and_its_model_makes_room_after_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the place lasts longer than `queue_timeout_s`, and does not count."""
    monkeypatch.setattr("slotgate.gateway.processes.loader.LOADS_PER_TURN", 0.0)
    settings = own_settings(
        *both(tiny_model), max_loaded=1, residence_s=0.0, admission={"queue_timeout_s": 0.2}
    )
    async with running_gateway(settings, ready=False) as gateway:
        a = gateway.fleet.backends["a"]
        async with endless(gateway, "a") as running:
            waiting = asyncio.create_task(talk(gateway, "b"))
            await gateway.until(lambda: a.state is BackendState.LEAVING)
            late = asyncio.create_task(talk(gateway, "a"))
            frames = running.frames(PATIENCE_S)
            since = time.monotonic()
            while time.monotonic() < since + 0.5:
                await anext(frames)
            alive = (a.state.label, a.pool.leased, len(llamas()))
        assert alive == ("draining", 1, 1)
        assert [(await waiting).status, (await late).status] == [200, 200]


async def test_scenario_028_two_models_that_wait_for_the_place_of_a_third_are_both_served(
    tiny_model: Path,
) -> None:
    command = llama_command(tiny_model)
    backends = [own_backend(name, command, **DEMAND) for name in "abc"]
    async with running_gateway(own_settings(*backends, max_loaded=1), ready=False) as gateway:
        await talk(gateway, "a")
        answers = await asyncio.gather(talk(gateway, "b"), talk(gateway, "c"), talk(gateway, "b"))
        assert [got.status for got in answers] == [200] * 3
        assert len(llamas()) == 1


async def test_scenario_076_a_killed_process_ends_its_streams_with_errors_and_waiting_requests_are_served(
    tiny_model: Path,
) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model, slots=2)))
    async with running_gateway(settings) as gateway:
        async with endless(gateway, "a") as first, endless(gateway, "a") as second:
            asked = [ask(gateway.url, model="a", max_tokens=4) for _ in range(4)]
            waiting = [asyncio.create_task(one) for one in asked]
            await gateway.until(lambda: gateway.scheduler.depth == 4)
            [pid] = llamas()
            os.kill(pid, signal.SIGKILL)
            rests = [[frame async for frame in running.frames(PATIENCE_S)] for running in (first, second)]
            answers = await asyncio.gather(*waiting)
        started = [line["pid"] for line in gateway.log.of("llama-server") if line["state"] == "starting"]
    assert [error_in(rest)["code"] for rest in rests] == ["upstream_truncated"] * 2
    assert [got.status for got in answers] == [200] * 4
    assert len(started) == 2, "it was started once, and once again"


async def test_a_process_that_exits_at_load_is_given_up_and_its_requests_get_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = partial(LlamaProcess, limits=RestartLimits(first_delay_s=0.0))
    monkeypatch.setattr("slotgate.gateway.processes.managed_processes.LlamaProcess", hasty)
    command = llama_command(tmp_path / "no-such-model.gguf")
    settings = own_settings(own_backend("a", command, **DEMAND))
    async with running_gateway(settings, ready=False) as gateway:
        got = await talk(gateway, "a")
        ready = await fetch(gateway.url, "GET", "/ready")
        status = await fetch(gateway.url, "GET", "/admin/status", OPERATOR)
        again = await ask(gateway.url, model="a")
    assert (got.status, got.error["code"]) == (503, "no_backend")
    assert (ready.status, ready.json["backends"][0]["state"]) == (503, "failed")
    assert ready.json["backends"][0]["reason"].startswith("given up: exit status")
    assert status.json["backends"][0]["state"] == "failed"
    assert (again.status, again.error["code"]) == (503, "no_backend")
    assert "given up" in again.error["message"]


async def test_broken_model_takes_a_good_one_out_once_and_for_one_attempt(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason is shown until it has been loaded. While the good one is used, it is not tried again."""
    monkeypatch.setattr("slotgate.gateway.processes.restart_policy.REST_S", 0.2)
    tried = tmp_path / "tried"
    missing = llama_command(tmp_path / "no-such-model.gguf", before=f"echo >> {tried}")
    settings = own_settings(
        own_backend("good", llama_command(tiny_model), **DEMAND),
        own_backend("broken", missing, **DEMAND),
        max_loaded=1,
        residence_s=0.1,
    )
    reason = "exit status 1 (a file does not exist, probably the model)"
    async with running_gateway(settings) as gateway:
        assert (await talk(gateway, "good")).status == 200
        failed = await talk(gateway, "broken")
        assert (failed.status, failed.error["code"]) == (503, "no_backend")
        assert f"broken: given up: {reason}" in failed.error["message"]
        assert str(tmp_path) not in failed.error["message"]
        async with endless(gateway, "good"):
            again = await ask(gateway.url, model="broken")
            assert (again.status, again.error["code"]) == (503, "no_backend")
            assert reason in again.error["message"]
        await gateway.until(lambda: has_state(gateway.fleet.backends["broken"], BackendState.UNLOADED))
        [entry] = [
            entry
            for entry in (await fetch(gateway.url, "GET", "/ready")).json["backends"]
            if entry["name"] == "broken"
        ]
        assert entry["reason"] == f"failed when it was loaded last: {reason}; not loaded"
        assert tried.read_text() == "\n"


async def test_request_just_after_the_death_of_its_model_is_served(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model), **DEMAND))
    async with running_gateway(settings) as gateway:
        assert (await talk(gateway, "a")).status == 200
        [pid] = llamas()
        os.kill(pid, signal.SIGKILL)
        assert [got.status for got in await asyncio.gather(*(talk(gateway, "a") for _ in range(2)))] == [
            200,
            200,
        ]


async def test_scenario_117_a_process_that_was_given_up_is_started_again_for_a_later_request(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = RestartLimits(max_starts=2, first_delay_s=0.0, window_s=0.01)
    monkeypatch.setattr(
        "slotgate.gateway.processes.managed_processes.LlamaProcess", partial(LlamaProcess, limits=limits)
    )
    monkeypatch.setattr("slotgate.gateway.processes.restart_policy.REST_S", 0.05)
    repaired = tmp_path / "repaired"
    command = llama_command(tiny_model, before=f"[ -e {repaired} ] || exit 3")
    async with running_gateway(own_settings(own_backend("a", command, **DEMAND)), ready=False) as gateway:
        first = await talk(gateway, "a")
        repaired.touch()
        await gateway.until(lambda: gateway.fleet.backends["a"].state is BackendState.UNLOADED)
        second = await talk(gateway, "a")
    assert (first.status, first.error["code"], second.status) == (503, "no_backend", 200)


async def test_an_idle_model_is_unloaded_although_a_client_holds_its_response_open(tiny_model: Path) -> None:
    """The client was sent the whole answer and does not read it, so the lease is over."""
    settings = own_settings(
        own_backend("a", llama_command(tiny_model), idle_unload_s=0.3),
        streaming={"stream_buffer_bytes": 2**28, "stream_buffers_total_bytes": 2**28},
    )
    async with running_gateway(settings) as gateway:
        async with await gateway.client(receive_buffer=4096) as wedged:
            await wedged.send(request_bytes("POST", CHAT, json=chat(model="a", **UNMERGED)))
            await wedged.head(PATIENCE_S)
            wedged.stop_reading()
            a = gateway.fleet.backends["a"]
            await gateway.until(lambda: a.state is BackendState.UNLOADED, PATIENCE_S)
            held = len(gateway.in_flight.contexts)
            ready = (await fetch(gateway.url, "GET", "/ready")).status
        again = await talk(gateway, "a")
    assert (held, ready) == (1, 200)
    assert again.status == 200


async def test_a_model_is_not_unloaded_under_a_live_lease(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model), idle_unload_s=0.05))
    async with running_gateway(settings) as gateway:
        await talk(gateway, "a")
        async with endless(gateway, "a") as running:
            frames = running.frames(PATIENCE_S)
            for _ in range(500):
                await anext(frames)
            assert gateway.fleet.backends["a"].state is BackendState.READY


async def test_a_request_that_arrives_at_the_instant_of_unloading_is_served(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model), idle_unload_s=0.05))
    async with running_gateway(settings) as gateway:
        a = gateway.fleet.backends["a"]
        for instant in (BackendState.STOPPING, BackendState.UNLOADED) * 2:
            await gateway.until(partial(has_state, a, instant))
            got = await talk(gateway, "a")
            assert got.status == 200, (instant, got)


async def test_a_restart_waits_for_running_requests_and_then_serves_the_waiting_ones(
    tiny_model: Path,
) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model)))
    async with running_gateway(settings) as gateway:
        [before] = llamas()
        async with endless(gateway, "a") as running:
            answer = await order(gateway.url, "a", "restart")
            waiting = asyncio.create_task(talk(gateway, "a"))
            await anext(running.frames(PATIENCE_S))
            during = llamas()
        got = await waiting
        [after] = llamas()
    assert (answer.status, answer.json["state"]) == (200, "draining")
    assert during == [before]
    assert got.status == 200
    assert after != before


async def test_a_restart_whose_patience_ends_cancels_the_stream_with_an_error(tiny_model: Path) -> None:
    server = {**SERVER, "shutdown_grace_s": 0.2}
    settings = own_settings(own_backend("a", llama_command(tiny_model)), server=server)
    async with running_gateway(settings) as gateway:
        async with endless(gateway, "a") as running:
            await order(gateway.url, "a", "restart")
            rest = [frame async for frame in running.frames(PATIENCE_S)]
        assert error_in(rest)["code"] == "draining"
        await gateway.until(lambda: gateway.fleet.ready)


async def test_fifty_restarts_leave_no_zombie(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model)))
    async with running_gateway(settings) as gateway:
        a = gateway.fleet.backends["a"]
        before = len(child_processes())
        seen = set(llamas())
        for _ in range(50):
            await order(gateway.url, "a", "restart")
            await gateway.until(lambda: a.state is not BackendState.READY)
            await gateway.until(lambda: a.state is BackendState.READY)
            seen.update(llamas())
        assert len(seen) == 51
        assert len(child_processes()) == before


async def test_unload_and_load_by_order(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model)))
    async with running_gateway(settings) as gateway:
        a = gateway.fleet.backends["a"]
        await order(gateway.url, "a", "unload")
        await gateway.until(lambda: a.state is BackendState.STOPPED)
        refused = await ask(gateway.url, model="a")
        ready = (await fetch(gateway.url, "GET", "/ready")).status
        await order(gateway.url, "a", "load")
        got = await talk(gateway, "a")
    assert (refused.status, refused.error["code"], ready) == (503, "no_backend", 503)
    assert got.status == 200


async def test_requests_do_not_load_a_drained_backend(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model), **DEMAND))
    async with running_gateway(settings, ready=False) as gateway:
        await order(gateway.url, "a", "drain")
        refused = await ask(gateway.url, model="a")
        ready = await fetch(gateway.url, "GET", "/ready")
        await order(gateway.url, "a", "resume")
        got = await talk(gateway, "a")
    assert (refused.status, refused.error["code"], ready.status) == (503, "no_backend", 503)
    assert ready.json["backends"] == [
        {"name": "a", "state": "stopped", "reason": "drained by an operator; not loaded"}
    ]
    assert got.status == 200


async def test_an_order_to_load_makes_room_in_a_full_group(tiny_model: Path) -> None:
    async with running_gateway(own_settings(*both(tiny_model), max_loaded=1), ready=False) as gateway:
        await talk(gateway, "a")
        await order(gateway.url, "b", "load")
        await gateway.until(lambda: gateway.fleet.backends["b"].state is BackendState.READY)
        states = await shown(gateway.url)
    assert states == {"a": "stopped", "b": "ready"}


async def test_an_order_to_load_takes_back_one_to_unload(tiny_model: Path) -> None:
    async with running_gateway(own_settings(own_backend("a", llama_command(tiny_model)))) as gateway:
        a = gateway.fleet.backends["a"]
        async with endless(gateway, "a") as running:
            await order(gateway.url, "a", "unload")
            drained = a.state
            await order(gateway.url, "a", "load")
            await gateway.until(lambda: a.state is BackendState.READY)
            await anext(running.frames(PATIENCE_S))
        assert (drained, len(llamas())) == (BackendState.LEAVING, 1)


async def test_a_endpoints_without_a_slot_is_refused_and_begins_the_loading(tiny_model: Path) -> None:
    settings = own_settings(own_backend("a", llama_command(tiny_model), **DEMAND))
    body = {"model": "a", "content": "the old house"}
    async with running_gateway(settings, ready=False) as gateway:
        first = await fetch(gateway.url, "POST", "/tokenize", json=body)
        await gateway.until(lambda: gateway.fleet.backends["a"].state is BackendState.READY)
        second = await fetch(gateway.url, "POST", "/tokenize", json=body)
    assert (first.status, first.error["code"]) == (503, "no_backend")
    assert second.status == 200


async def test_a_client_that_leaves_while_its_model_loads_leaves_nothing(tiny_model: Path) -> None:
    slow = own_backend("a", llama_command(tiny_model, before="sleep 0.5"), **DEMAND)
    async with running_gateway(own_settings(slow), ready=False) as gateway:
        async with await gateway.client() as client:
            await client.send(request_bytes("POST", CHAT, json=chat(model="a")))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
        await gateway.until(lambda: gateway.idle)
        await gateway.until(lambda: gateway.fleet.backends["a"].state is BackendState.READY)
