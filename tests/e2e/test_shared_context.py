"""Slots of a real llama-server that share one context never use more than there is together."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.backends.answer_sizes import LEAST_ANSWERS
from tests.support.client import read_stream
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, Gateway, chat, data_of, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.notation import DONE
from tests.support.own import llama_command, own_backend, own_settings

pytestmark = [pytest.mark.anyio, pytest.mark.real]

CONTEXT, SLOTS = 2048, 4
TRAINED = 32768
"""The context that the tiny model was trained for."""
UNIFIED = ("--kv-unified", "-c", str(CONTEXT))
LONG = chat("hello", max_tokens=900, model="m")
"""A request of which two fit, with their prompts, and four do not."""
PATIENCE_S = 60.0


async def all_at_once(url: str) -> list[tuple[str, bool]]:
    """Send one stream to each slot. Return the reason of each end, and True if `[DONE]` followed."""
    bodies: list[dict[str, Any]] = [LONG] * SLOTS
    streams = await asyncio.gather(*(read_stream(url, CHAT, body, within=PATIENCE_S) for body in bodies))
    return [(_reason(data_of(frames)), frames[-1].data == DONE) for frames in streams]


def _reason(chunks: list[dict[str, Any]]) -> str:
    if "error" in chunks[-1]:
        return str(chunks[-1]["error"]["message"])
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk.get("choices")]
    return str(reasons[-1])


async def test_streams_end_each_other_without_the_gateway(run_llama: RunLlama, tiny_model: Path) -> None:
    """This shows that the other tests would notice if the gateway did nothing."""
    llama = run_llama(RealLlama(tiny_model, slots=SLOTS, args=UNIFIED))
    ends = await all_at_once(llama.url)
    assert "Context size has been exceeded." in {reason for reason, _ in ends}


async def test_through_the_gateway_each_stream_gets_its_length(run_llama: RunLlama, tiny_model: Path) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=SLOTS, args=UNIFIED))
    backend = {"name": "gpu0", "url": llama.url, "models": ["m"], "health_interval_s": 0.2}
    settings = settings_for(llama.url, backend=[{**backend, "kv_unified": True}])
    async with running_gateway(settings) as gateway:
        assert context_of(gateway, "gpu0") == CONTEXT
        assert await all_at_once(gateway.url) == [("length", True)] * SLOTS


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True], ids=["command", "script"])
async def test_the_log_of_an_own_process_shows_that_its_slots_share_a_context(
    tiny_model: Path, tmp_path: Path, hidden: bool
) -> None:
    """The command is a script, whose own options do not show those that it adds."""
    command = llama_command(tiny_model, *UNIFIED, slots=SLOTS)
    if hidden:
        script = tmp_path / "start.sh"
        script.write_text(f'exec {shlex.join(command)} "$@"')
        command = ["sh", str(script)]
    async with running_gateway(own_settings(own_backend("m", command))) as gateway:
        assert context_of(gateway, "m") == CONTEXT
        assert await all_at_once(gateway.url) == [("length", True)] * SLOTS


GREEDY = chat("hello", max_tokens=1500, model="m")
"""It asks for far more than it mostly gets: with `stop` it ends after some tokens."""
SHORT = GREEDY | {"stop": [" "]}


@pytest.mark.slow
async def test_requests_that_ask_for_much_and_take_little_run_side_by_side(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    async with shared_by(run_llama, tiny_model) as gateway:
        for _ in range(LEAST_ANSWERS):
            await read_stream(gateway.url, CHAT, SHORT, within=PATIENCE_S)
        [pool] = [backend.pool for backend in gateway.fleet.backends.values()]
        async with AsyncExitStack() as stack:
            for _ in range(3):
                client = await stack.enter_async_context(await gateway.client())
                await client.post(CHAT, LONG | {"max_tokens": 1500})
                await anext(client.frames(PATIENCE_S))
            assert (pool.leased, pool.room > 0) == (3, True)


@pytest.mark.slow
async def test_only_one_of_two_answers_that_outgrow_the_context_is_ended(
    run_llama: RunLlama, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model generates thousands of tokens a second, so the gateway looks more often."""
    monkeypatch.setattr("slotgate.gateway.forwarding.context_watch.LOOK_S", 0.02)
    async with shared_by(run_llama, tiny_model) as gateway:
        for _ in range(LEAST_ANSWERS):
            await read_stream(gateway.url, CHAT, SHORT, within=PATIENCE_S)
        streams = (read_stream(gateway.url, CHAT, GREEDY, within=PATIENCE_S) for _ in range(2))
        ends = {
            _reason(data_of(frames)): frames[-1].data == DONE for frames in await asyncio.gather(*streams)
        }
        assert ends.pop("length") is True
        [(error, done)] = ends.items()
        assert ("all requests of this backend share" in error, done) == (True, False)


@asynccontextmanager
async def shared_by(run_llama: RunLlama, model: Path) -> AsyncIterator[Gateway]:
    llama = run_llama(RealLlama(model, slots=SLOTS, args=UNIFIED))
    backend = {
        "name": "gpu0",
        "url": llama.url,
        "models": ["m"],
        "health_interval_s": 0.2,
        "kv_unified": True,
    }
    async with running_gateway(settings_for(llama.url, backend=[backend])) as gateway:
        yield gateway


ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello", "n_predict": -1, "max_tokens": 100_000},
    "/v1/responses": {"input": "hello"},
}


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_answers_without_a_limit_do_not_end_each_other(tiny_model: Path, path: str) -> None:
    """The model never ends by itself, so each answer gets the rest of its slot's share of the context."""
    command = llama_command(tiny_model, *UNIFIED, slots=SLOTS)
    async with running_gateway(own_settings(own_backend("m", command))) as gateway:
        body = ENDPOINTS[path] | {"model": "m", "stream": True}
        asking = (read_stream(gateway.url, path, body, within=PATIENCE_S) for _ in range(SLOTS))
        streams = await asyncio.gather(*asking)
        assert [chunk for frames in streams for chunk in data_of(frames) if "error" in chunk] == []
        assert all(300 < len(frames) < CONTEXT // SLOTS + 10 for frames in streams)


@pytest.mark.slow
@pytest.mark.parametrize("load", ["start", "demand"])
async def test_requests_that_wait_for_a_process_to_load_are_counted_too(tiny_model: Path, load: str) -> None:
    backend = own_backend("m", llama_command(tiny_model, *UNIFIED, slots=SLOTS), load=load)
    async with running_gateway(own_settings(backend), ready=False) as gateway:
        assert await all_at_once(gateway.url) == [("length", True)] * SLOTS


async def test_a_process_whose_slots_have_contexts_of_their_own_is_not_held_back(tiny_model: Path) -> None:
    command = llama_command(tiny_model, slots=SLOTS)
    async with running_gateway(own_settings(own_backend("m", command))) as gateway:
        assert context_of(gateway, "m") == 0


async def test_the_configured_value_counts_most(tiny_model: Path) -> None:
    command = llama_command(tiny_model, *UNIFIED, slots=SLOTS)
    async with running_gateway(own_settings(own_backend("m", command, kv_unified=False))) as gateway:
        assert context_of(gateway, "m") == 0


async def test_context_without_a_number_of_slots_is_shared(run_llama: RunLlama, tiny_model: Path) -> None:
    """llama-server is mostly started like this. Its command shows it, and none of its pages does."""
    llama = run_llama(RealLlama(tiny_model, slots=None, context=CONTEXT))
    async with running_gateway(settings_for(llama.url)) as gateway:
        assert context_of(gateway, "gpu0") == CONTEXT
        assert await all_at_once(gateway.url) == [("length", True)] * SLOTS


async def test_trained_context_times_the_slots_is_not_shared(run_llama: RunLlama, tiny_model: Path) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=2, context=2 * TRAINED))
    async with running_gateway(settings_for(llama.url)) as gateway:
        backend = gateway.fleet.backends["gpu0"]
        assert backend.n_ctx == backend.n_ctx_train == TRAINED
        assert context_of(gateway, "gpu0") == 0


async def test_overflow_teaches_that_the_context_is_shared(
    run_llama: RunLlama, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A llama-server on another machine, whose command cannot be seen."""
    monkeypatch.setattr("slotgate.gateway.backends.health_monitor.local_port", lambda _: None)
    llama = run_llama(RealLlama(tiny_model, slots=None, context=CONTEXT))
    async with running_gateway(settings_for(llama.url)) as gateway:
        assert context_of(gateway, "gpu0") == 0
        ends = await all_at_once(gateway.url)
        assert "Context size has been exceeded." in {reason for reason, _ in ends}
        assert context_of(gateway, "gpu0") == CONTEXT
        assert await all_at_once(gateway.url) == [("length", True)] * SLOTS


async def test_slots_that_each_have_the_model_s_whole_context_are_taken_to_share_it(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    """llama-server starts like this without options: four slots, each with the whole context."""
    trained = RealLlama(tiny_model, slots=SLOTS, args=("--kv-unified", "-c", "0"))
    llama = run_llama(trained)
    async with running_gateway(settings_for(llama.url)) as gateway:
        backend = gateway.fleet.backends["gpu0"]
        assert backend.pool.context == backend.n_ctx == backend.n_ctx_train


def context_of(gateway: Gateway, name: str) -> int:
    return gateway.fleet.backends[name].pool.context
