"""The real llama-server behind the gateway: what it says arrives, as fast as it says it."""

import statistics
import time

import pytest

from tests.support.client import RawClient
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama import RealLlama

pytestmark = pytest.mark.anyio

TOKENS = 1500
ROUNDS = 4


async def tokens_a_second(url: str) -> float:
    """Of one whole stream: from the first frame to the last."""
    async with await RawClient.connect(url) as client:
        await client.post(CHAT, chat(max_tokens=TOKENS, temperature=0, cache_prompt=False))
        began, frames = 0.0, 0
        async for piece in client.pieces():
            began = began or time.perf_counter()
            frames += piece.count(b"data: {")
        return frames / (time.perf_counter() - began)


async def test_a_stream_through_the_gateway_is_at_least_95_percent_as_fast(tiny_llama: RealLlama) -> None:
    async with running_gateway(settings_for(tiny_llama.url)) as gateway:
        for _ in range(2):  # the second time only if the machine was busy
            pairs = [
                (await tokens_a_second(tiny_llama.url), await tokens_a_second(gateway.url))
                for _ in range(ROUNDS)
            ]
            direct, through = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"direct {direct:.0f}, through {through:.0f} tokens/s: {through / direct:.3f}")
            if through >= 0.95 * direct:
                return
    raise AssertionError(f"{through:.0f} of {direct:.0f} tokens/s")
