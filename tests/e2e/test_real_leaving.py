"""Clients leave a real llama-server behind the gateway: no work is deferred, lost or kept alive.

llama-server logs when it cancels a task and when it releases a slot. Reading the log disturbs nothing,
whereas a request over HTTP would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from pathlib import Path

import pytest

from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.notation import DONE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMALL_BATCHES = ("--metrics", "-b", "16", "-ub", "16")
"""Small batches, because requests are answered between batches: several a second even on a slow machine."""
WORDS = 2000
FEW_WORDS = 1000
"""Reading them takes several seconds, and llama-server looks for closed connections after one."""
TRIES = 3
LONG_PROMPT = "word " * WORDS
CANCELLED, LET_GO = "cancel task", "stop processing"
SAMPLE_S = 1.6
"""The pause between requests to `/metrics`. Each answer starts llama-server's one-second check anew."""


async def logged(llama: RealLlama, text: str, since: int, within: float) -> float:
    """Wait until the log has a line with this text. Return how many seconds that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not any(text in line for line in list(llama.log)[since:]):
        assert loop.time() - began < within, f"{text!r} not logged within {within} s"
        await asyncio.sleep(0.02)
    return loop.time() - began


def tokens_done(llama: RealLlama, since: int) -> int:
    """Return the number of tokens that the slot had processed when it was released."""
    [line] = [line for line in list(llama.log)[since:] if LET_GO in line]
    return int(line.partition("n_tokens = ")[2].partition(",")[0])


async def leave_a_prefill(gateway: Gateway, llama: RealLlama, words: int) -> int:
    """Leave in the middle of the prefill of a prompt. Return the length of the log at that moment."""
    async with await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=chat("word " * words, max_tokens=5)))
        await logged(llama, "processing task", 0, within=5)
        await asyncio.sleep(0.3)  # well into the prefill
        return len(list(llama.log))


async def test_scenario_015_an_abandoned_prefill_is_cancelled_in_time_because_our_probes_let_it(
    run_llama: RunLlama, small_model: Path
) -> None:
    llama = run_llama(RealLlama(small_model, slots=1, context=8192, args=SMALL_BATCHES))
    async with running_gateway(settings_for(llama.url)) as gateway:
        since = await leave_a_prefill(gateway, llama, WORDS)
        cancelled = await logged(llama, CANCELLED, since, within=10)
        released = cancelled + await logged(llama, LET_GO, since, within=10)
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: pool.free == 1, within=10)
        print(f"prefill: cancelled after {cancelled:.2f} s, slot idle after {released:.2f} s")
    assert cancelled < 2.5
    assert tokens_done(llama, since) < 0.9 * WORDS


async def test_the_same_prefill_runs_to_its_end_when_slots_is_asked_every_fifth_of_a_second(
    run_llama: RunLlama, small_model: Path
) -> None:
    """This is the reason for the spacing of the probes."""
    done = 0
    for _ in range(TRIES):  # a machine that is busy elsewhere for a second lets llama-server notice
        llama = run_llama(RealLlama(small_model, slots=1, context=8192, args=SMALL_BATCHES))
        async with running_gateway(settings_for(llama.url)) as gateway:
            since = await leave_a_prefill(gateway, llama, FEW_WORDS)
            asking = asyncio.create_task(ask_always(llama, 0.2))
            released = await logged(llama, LET_GO, since, within=150)
            asking.cancel()
            print(f"asked every 0.2 s: the slot was busy for {released:.2f} s")
            await gateway.until(partial(_all_free, gateway), within=10)
        done = tokens_done(llama, since)
        llama.stop()
        if done > 0.9 * FEW_WORDS:
            break
    assert done > 0.9 * FEW_WORDS


def _all_free(gateway: Gateway) -> bool:
    return gateway.fleet.backends["gpu0"].pool.free == 1


async def ask_always(llama: RealLlama, every_s: float) -> None:
    while True:
        await llama.slots_busy()
        await asyncio.sleep(every_s)


async def test_scenario_030_twenty_clients_of_which_half_leave_defer_nothing_and_lose_no_slot(
    run_llama: RunLlama, small_model: Path
) -> None:
    llama = run_llama(RealLlama(small_model, slots=2, context=8192, args=SMALL_BATCHES))
    deferred: list[float] = []
    dice = random.Random(7)
    async with running_gateway(settings_for(llama.url)) as gateway:
        sampling = asyncio.create_task(sample(llama, deferred))
        kinds = [(leaves, stream) for leaves in (True, False) for stream in (True, False)] * 5
        dice.shuffle(kinds)
        runs = [one_client(gateway, dice, leaves=leaves, stream=stream) for leaves, stream in kinds]
        stayed = await asyncio.gather(*runs)
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: pool.free == 2, within=20)
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        both = [read_stream(gateway.url, CHAT, chat(max_tokens=2), within=20) for _ in range(2)]
        assert [frames[-1].data for frames in await asyncio.gather(*both)] == [DONE] * 2
    print(f"{len(deferred)} samples of requests_deferred: {deferred}; outcomes {pool.released}")
    assert stayed.count(True) == 10
    # A sample may meet the moment in which llama-server hands a finished slot over.
    assert sum(1 for count in deferred if count) <= 1


async def one_client(gateway: Gateway, dice: random.Random, *, leaves: bool, stream: bool) -> bool:
    """Return True if the client stayed and got its whole answer. Others leave in queue, prefill or decode."""
    long_prompt = leaves and dice.random() < 0.5
    body = chat(LONG_PROMPT if long_prompt else "hi", stream=stream, max_tokens=8, ignore_eos=True)
    await asyncio.sleep(dice.uniform(0, 8))
    async with await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=body))
        if leaves:
            await asyncio.sleep(dice.uniform(0.02, 2.5))
            return False
        await client.head(within=60)
        content = await client.body(within=60)
        return client.status == 200 and (not stream or content.endswith(DONE))


async def sample(llama: RealLlama, deferred: list[float]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        async with await RawClient.connect(llama.url) as client:
            await client.request("GET", "/metrics", within=10)
            text = (await client.body()).decode()
        [line] = [line for line in text.split("\n") if line.startswith("llamacpp:requests_deferred")]
        deferred.append(float(line.split()[1]))
