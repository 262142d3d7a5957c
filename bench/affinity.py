"""`python -m bench.affinity`: measure what prompt affinity gains: a conversation goes back to its backend.

Two real llama-servers with a small real model serve conversations of several turns, two at once in random
order, first with affinity and then without. The figures are the share of prompt tokens that came from the
cache, and the time to the first token, both from the second turn on.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import httpx
import orjson

from slotgate.gateway.app.serve import assemble
from slotgate.gateway.backends.affinity import Affinity
from slotgate.gateway.server.listener import Listener
from slotgate.gateway.settings import parse

__all__ = ["main"]

CONVERSATIONS = 6
TURNS = 5
SLOTS = 4
AT_ONCE = 2
PARAGRAPH = "The river carries what the mountains give it, slowly, past the mill and the old bridge. " * 8


@dataclass
class Seen:
    prompt: int = 0
    cached: int = 0
    first_token_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        share = self.cached / max(self.prompt, 1)
        median = statistics.median(self.first_token_ms)
        return (
            f"{share:.0%} of {self.prompt:,} prompt tokens from the cache, first token after {median:.0f} ms"
        )


async def _turn(
    client: httpx.AsyncClient, messages: list[dict[str, str]]
) -> tuple[str, dict[str, Any], float]:
    body = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": messages,
        "max_tokens": 8,
        "temperature": 0,
    }
    began, first, text = time.monotonic(), 0.0, ""
    usage: dict[str, Any] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            said = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if said and not first:
                first = time.monotonic() - began
            text += said
            usage = chunk.get("usage") or usage
    return text, usage, first * 1000


async def _talk(urls: list[str], seed: int) -> Seen:
    backends = [{"name": f"gpu{n}", "url": url, "models": ["m"]} for n, url in enumerate(urls)]
    settings = parse({"server": {"port": 0}, "backend": backends}, {})
    chance = random.Random(seed)
    talks: list[list[dict[str, str]]] = [[] for _ in range(CONVERSATIONS)]
    seen = Seen()
    at_once = asyncio.Semaphore(AT_ONCE)
    async with assemble(settings) as (app, parts):
        server = Listener(app, settings.server)
        await server.listen()
        while not all(backend.pool.admitting for backend in parts.runtime.fleet.backends.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:

            async def one(number: int) -> None:
                messages = talks[number]
                messages.append({"role": "user", "content": f"{seed}-{number}: {PARAGRAPH}"})
                later = len(messages) > 1
                async with at_once:
                    text, usage, first_ms = await _turn(client, messages)
                messages.append({"role": "assistant", "content": text})
                if later:
                    seen.prompt += usage["prompt_tokens"]
                    seen.cached += usage["prompt_tokens_details"]["cached_tokens"]
                    seen.first_token_ms.append(first_ms)

            for _ in range(TURNS):
                await asyncio.gather(*map(one, chance.sample(range(CONVERSATIONS), CONVERSATIONS)))
        server.close()
    return seen


@contextmanager
def _llamas() -> Iterator[list[str]]:
    from tests.support.llama import RealLlama, smollm2  # noqa: PLC0415

    args = ["--alias", "m"]
    with (
        RealLlama(smollm2(), slots=SLOTS, context=SLOTS * 2048, args=args) as one,
        RealLlama(smollm2(), slots=SLOTS, context=SLOTS * 2048, args=args) as two,
    ):
        yield [one.url, two.url]


async def _measure(urls: list[str]) -> None:
    with_it, without = Seen(), Seen()
    for round_ in range(2):
        for seen, warm in ((with_it, True), (without, False)):
            with nullcontext() if warm else patch.object(Affinity, "warmth", lambda *_: {}):
                one = await _talk(urls, seed=2 * round_ + warm)
            seen.prompt += one.prompt
            seen.cached += one.cached
            seen.first_token_ms += one.first_token_ms
    print(f"{CONVERSATIONS} conversations of {TURNS} turns on two llama-servers, later turns:")
    print(f"with affinity:    {with_it}")
    print(f"without affinity: {without}")


def main() -> int:
    with _llamas() as urls:
        asyncio.run(_measure(urls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
