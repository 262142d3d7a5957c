"""The real llama-server behind the gateway: its text arrives, and as fast as it is generated."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.client import read_stream, request_bytes
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, chat, data_of, running_gateway, settings_for, text_of
from tests.support.llama import RealLlama
from tests.support.notation import DONE
from tests.support.served import backend_table, served_gateway

pytestmark = pytest.mark.anyio

TOKENS = 3000
ROUNDS = 5
TRIES = 6


def measured(tokens: int) -> dict[str, Any]:
    return chat(max_tokens=tokens, temperature=0, seed=1, cache_prompt=False)


async def tokens_a_second(url: str) -> float:
    """Return the rate of one whole stream, from its first bytes to its last. The bytes are counted unparsed,
    because llama-server and the gateway need both cores of the machine."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request_bytes("POST", CHAT, b"Connection: close", json=measured(TOKENS)))
    began, frames = 0.0, 0
    while data := await reader.read(1 << 18):
        began = began or time.perf_counter()
        frames += data.count(b"data: {")
    took = time.perf_counter() - began
    writer.close()
    assert frames > 0.99 * TOKENS  # one that lies across two reads is not seen
    return frames / took


async def test_a_stream_is_at_least_95_percent_as_fast_as_direct(
    tiny_llama: RealLlama, tmp_path: Path
) -> None:
    """The gateway is a process of its own. Rounds alternate, and are repeated if the machine was busy."""
    async with served_gateway(tmp_path, backend_table(tiny_llama.url)) as served:
        for _ in range(TRIES):
            sides = [
                (await tokens_a_second(tiny_llama.url), await tokens_a_second(served.url))
                for _ in range(ROUNDS)
            ]
            direct, through = (statistics.median(side) for side in zip(*sides, strict=True))
            print(f"direct {direct:.0f}, through {through:.0f} tokens/s: {through / direct:.3f}")
            if through >= 0.95 * direct:
                return
    raise AssertionError(f"{through:.0f} of {direct:.0f} tokens/s")


async def test_the_answer_through_the_gateway_is_the_backends_own(tiny_llama: RealLlama) -> None:
    body = measured(40)
    async with running_gateway(settings_for(tiny_llama.url)) as gateway:
        direct = data_of(await read_stream(tiny_llama.url, CHAT, body))
        through = data_of(await read_stream(gateway.url, CHAT, body))
    own = ("id", "model", "created", "timings")
    strip = [
        [{key: value for key, value in chunk.items() if key not in own} for chunk in side]
        for side in (direct, through)
    ]
    assert strip[1] == strip[0]
    assert [sorted(chunk) for chunk in through] == [sorted(chunk) for chunk in direct]


async def test_smollm2_streams_a_sentence(run_llama: RunLlama, small_model: Path) -> None:
    llama = run_llama(RealLlama(small_model, slots=2, context=2048))
    async with running_gateway(settings_for(llama.url)) as gateway:
        asked = chat("What is the capital of France?", max_tokens=24, temperature=0)
        frames = await read_stream(gateway.url, CHAT, asked)
    assert frames[-1].data == DONE
    assert len(text_of(frames).split()) > 3


@pytest.mark.parametrize("words", [10, 3000], ids=["decode", "prefill"])
async def test_a_slot_whose_client_left_serves_again(
    run_llama: RunLlama, small_model: Path, words: int
) -> None:
    """There is one slot.

    A client leaves, and the next request gets the slot when llama-server has released it.
    """
    llama = run_llama(RealLlama(small_model, slots=1, context=8192, args=("-b", "256", "-ub", "256")))
    async with running_gateway(settings_for(llama.url)) as gateway:
        async with await gateway.client() as client:
            await client.send(_request("word " * words))
            await gateway.until(lambda: gateway.scheduler.leases == 1)
            await asyncio.sleep(0.3)  # into the work: the client gets no sign of when it begins
        began = asyncio.get_running_loop().time()
        frames = await read_stream(gateway.url, CHAT, chat("hi", max_tokens=2), within=20)
        took = asyncio.get_running_loop().time() - began
        print(f"{words} words: the next request was through after {took:.2f} s")
        assert frames[-1].data == DONE


def _request(text: str) -> bytes:
    return request_bytes("POST", CHAT, json=chat(text, max_tokens=500, ignore_eos=True))
