"""Several tenants on a real llama-server with two slots: shares, limits, and prompts kept apart.

Shares are counted in slot time, by the scheduler's own books. The tests measure no times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import WholeResponse, fetch
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.llama import RealLlama

pytestmark = pytest.mark.anyio

WEIGHTS = {"one": 1, "two": 2, "four": 4}
TOKENS = {"one": 60, "two": 20, "four": 110, "batch": 40}
"""Tenant -> the tokens of each of its answers. Tenants ask for different amounts."""
ASKING = 5
"""Requests that each tenant has under way. They are more than the slots, so every tenant always waits."""
ENOUGH = 40_000
MARGIN = 0.2


def tenant(name: str, **members: object) -> dict[str, Any]:
    return {"name": name, "key_hashes": [hash_key(f"sg-{name}")], **members}


def key(name: str) -> bytes:
    return b"authorization: Bearer sg-" + name.encode()


class EndedRequests:
    """Counts of the requests that have ended, from the log."""

    def __init__(self, gateway: Gateway) -> None:
        self.requests = Counter[str]()
        self.tokens = Counter[str]()
        for line in gateway.log.of("request"):
            if line["outcome"] == "ok" and line["path"] == CHAT:
                self.requests[line["tenant"]] += 1
                self.tokens[line["tenant"]] += line["prompt_tokens"] + line["completion_tokens"]


def off_by(slot_seconds: Mapping[str, float]) -> float:
    """Return the largest deviation of a weighted tenant from its share of the slot time."""
    everything = sum(slot_seconds[name] for name in WEIGHTS)
    dues = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    return max(abs(slot_seconds[name] / everything / dues[name] - 1) for name in WEIGHTS)


async def backlogged(
    gateway: Gateway, llama: RealLlama
) -> tuple[EndedRequests, dict[str, float], list[float]]:
    """Let all tenants ask without a pause until enough was served. Return the served requests, their slot
    time, and the number of requests that waited inside llama-server at each look."""

    async def keep_asking(name: str, number: int) -> None:
        body = chat("word " * number, max_tokens=TOKENS[name], temperature=0)
        while True:
            if number % 2:
                await read_stream(gateway.url, CHAT, body, [key(name)], within=60)
            else:
                async with await RawClient.connect(gateway.url) as client:
                    await client.send(request_bytes("POST", CHAT, key(name), json=body | {"stream": False}))
                    await client.head(within=60)
                    assert client.status == 200, await client.body()
                    await client.body()

    deferred = []
    askers = [asyncio.create_task(keep_asking(name, number)) for name in TOKENS for number in range(ASKING)]
    try:
        for part in range(1, 9):
            await gateway.until(
                lambda: EndedRequests(gateway).tokens.total() >= ENOUGH * part / 8,  # noqa: B023
                within=120,
            )
            deferred.append((await llama.metrics())["requests_deferred"])
            for task in askers:
                assert not task.done(), task.exception()
        return EndedRequests(gateway), dict(gateway.scheduler.slot_seconds), deferred
    finally:
        for task in askers:
            task.cancel()
        await asyncio.wait(askers)


async def test_shares_of_a_real_llama_server_follow_the_weights_of_tenants(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    """There are streams and whole answers, and a batch tenant. The measurement is repeated if it fails."""
    llama = run_llama(RealLlama(tiny_model, slots=2, context=4096))
    tenants = [tenant(name, weight=weight) for name, weight in WEIGHTS.items()]
    tenants.append(tenant("batch", weight=1000, priority="batch"))
    for _ in range(2):
        async with running_gateway(settings_for(llama.url, tenant=tenants)) as gateway:
            served, held, deferred = await backlogged(gateway, llama)
            scheduler = gateway.scheduler
            await gateway.until(lambda: gateway.idle and gateway.fleet.backends["gpu0"].pool.free == 2)
            assert (scheduler.leases_by_tenant, scheduler.status().by_tenant) == ({}, {})
        assert deferred == [0.0] * len(deferred), "no request waits inside llama-server"
        assert await llama.slots_busy() == 0
        interactive = sum(held[name] for name in WEIGHTS)
        print(f"{dict(served.requests)} requests, {held} slot-seconds: {off_by(held):.1%} off")
        if off_by(held) <= MARGIN and held["batch"] == pytest.approx(interactive / 8, rel=0.2):
            return
    raise AssertionError(f"{served.tokens}, {held}")


async def test_limits_hold_in_front_of_a_real_llama_server(run_llama: RunLlama, tiny_model: Path) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=2, context=4096))
    tenants = [
        tenant("few", requests_per_minute=6),
        tenant("narrow", max_concurrent=1),
        tenant("poor", tokens_per_day=100),
    ]
    async with running_gateway(settings_for(llama.url, tenant=tenants)) as gateway:
        limiter = gateway.limiter

        async def asked(name: str) -> WholeResponse:
            return await ask(gateway.url, key(name), stream=False, max_tokens=20)

        few = await asyncio.gather(*(asked("few") for _ in range(20)))
        assert Counter(got.status for got in few) == {200: 6, 429: 14}
        assert {got.error["code"] for got in few if got.status == 429} == {"rate_limited"}
        narrow = await asyncio.gather(*(asked("narrow") for _ in range(10)))
        assert {got.error["code"] for got in narrow if got.status == 429} == {"tenant_concurrency"}
        assert (await asked("narrow")).status == 200
        poor = [await asked("poor") for _ in range(10)]
        spent = sum(got.json["usage"]["total_tokens"] for got in poor if got.status == 200)
        assert limiter.used_today("poor") == spent <= 100
        assert {got.error["code"] for got in poor if got.status == 429} == {"quota_exceeded"}
    assert await llama.slots_busy() == 0


# Prompts kept apart

CANARY = "the secret of the house is the long black water of the room where the children work at night "
SAID = CANARY * 6
ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": SAID}], "max_tokens": 12},
    "/v1/completions": {"prompt": SAID, "max_tokens": 12},
    "/completion": {"prompt": SAID, "n_predict": 12},
    "/v1/responses": {"input": SAID, "max_output_tokens": 12},
}


def heard(answer: dict[str, Any]) -> tuple[int, object]:
    """Return the tokens that came from the cache, and the text of the answer."""
    if "content" in answer:
        return answer["timings"]["cache_n"], answer["content"]
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    if "choices" in answer:
        said = [choice.get("text") or choice.get("message") for choice in answer["choices"]]
        return details["cached_tokens"], said
    return details["cached_tokens"], [part["content"][0]["text"] for part in answer["output"]]


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_scenario_116_a_tenant_whose_cache_is_isolated_finds_nothing_of_the_others(
    path: str, run_llama: RunLlama, tiny_model: Path
) -> None:
    """There is one slot, so both tenants use it.

    Without isolation the second one finds the prompt of the first.
    """
    body = {**ENDPOINTS[path], "temperature": 0, "seed": 1}
    async with AsyncExitStack() as running:
        found: dict[str, list[tuple[int, object]]] = {}
        for kind, members in {"shared": {}, "isolated": {"isolate_cache": "best-effort"}}.items():
            llama = run_llama(RealLlama(tiny_model, slots=1, context=4096))
            tenants = [tenant("a", **members), tenant("b", **members)]
            gateway = await running.enter_async_context(
                running_gateway(settings_for(llama.url, tenant=tenants))
            )
            answers = [await fetch(gateway.url, "POST", path, key(name), json=body) for name in "abab"]
            assert [got.status for got in answers] == [200] * 4
            found[kind] = [heard(got.json) for got in answers]
    assert [cached > 0 for cached, _ in found["shared"]] == [False, True, True, True]
    assert [cached for cached, _ in found["isolated"]] == [0, 0, 0, 0]
    first = found["isolated"][0][1]
    assert all(said == first for _, said in found["isolated"]), "it is what a fresh server says"
    assert first == found["shared"][0][1]


async def test_a_tenant_without_isolation_can_find_what_an_isolated_one_left(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    """This is not desired, but documented: the slot keeps the prompt that it read."""
    body = {**ENDPOINTS[CHAT], "temperature": 0}
    llama = run_llama(RealLlama(tiny_model, slots=1, context=4096))
    tenants = [tenant("a", isolate_cache="best-effort"), tenant("b")]
    async with running_gateway(settings_for(llama.url, tenant=tenants)) as gateway:
        answers = [await fetch(gateway.url, "POST", CHAT, key(name), json=body) for name in "aba"]
    assert [heard(got.json)[0] > 0 for got in answers] == [False, True, False]
