"""Two thousand requests end in every possible way: no slot is lost, and none is used twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, answer, chunked, error_body
from tests.support.script import Fin, Paced, Rst, Script, Sleep, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUESTS, AT_ONCE, SLOTS = 2000, 200, 24
ERROR = b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n'
WHOLE = answer(200, {"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

UPSTREAMS: dict[str, Script] = {
    "a stream": [Write(H + chunked(T("a"), T("b"), STOP, DONE) + END), Fin()],
    "a slow stream": [Write(H), Paced(200, count=6), Write(chunked(STOP, DONE) + END), Fin()],
    "a late stream": [Sleep(0.03), Write(H + chunked(T("a"), STOP, DONE) + END), Fin()],
    "an error first": [Write(H + chunked(ERROR) + END), Fin()],
    "an error later": [Write(H + chunked(T("a"), ERROR) + END), Fin()],
    "no sentinel": [Write(H + chunked(T("a")) + END), Fin()],
    "cut by FIN": [Write(H + chunked(T("a"))), Fin()],
    "cut by RST": [Write(H + chunked(T("a"))), Rst()],
    "RST at once": [Rst()],
    "400": [Write(answer(400, error_body(400, "no", "invalid_request_error"), b"Connection: close")), Fin()],
    "500": [Write(answer(500, error_body(500, "no", "server_error"), b"Connection: close")), Fin()],
    "not HTTP": [Write(b"HELLO\r\n\r\n"), Fin()],
    "a bad chunk": [Write(H + chunked(T("a")) + b"zz\r\n"), Fin()],
    "silence": [Stall()],
    "silence after headers": [Write(H), Stall()],
}


def scripted(request: ReceivedRequest) -> Script:
    body = request.json()
    if not body["stream"]:
        return [Write(WHOLE)] if body["name"] == "a stream" else UPSTREAMS["RST at once"]
    return UPSTREAMS[body["name"]]


async def one(gateway: Gateway, dice: random.Random, seen: Counter[str]) -> None:
    name = dice.choice([*UPSTREAMS, *["a slow stream"] * 30])
    stream = dice.random() < 0.8
    leaves = "silence" in name or dice.random() < 0.1
    async with await RawClient.connect(gateway.url) as client:
        await client.send(request_bytes("POST", CHAT, json=chat(stream=stream, name=name)))
        if not leaves:
            await client.head(within=60)
            await client.body(within=60)
            seen[str(client.status)] += 1
            return
        with contextlib.suppress(TimeoutError):
            await client.head(within=dice.uniform(0.001, 0.1))
        seen["left"] += 1
        dice.choice([client.close, client.reset])()


async def test_scenario_007_no_slot_is_lost_and_none_is_used_twice() -> None:
    dice = random.Random(11)
    seen: Counter[str] = Counter()
    fu = ScriptedUpstream(scripted, llama=LlamaLike(SLOTS))
    async with fu, running_gateway(settings_for(fu.url, admission={"max_queue": 1000})) as gateway:
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated() -> None:
            async with gate:
                await one(gateway, dice, seen)

        await asyncio.gather(*(gated() for _ in range(REQUESTS)))
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: pool.free == SLOTS, within=20)
        scheduler = gateway.scheduler
        assert scheduler.granted == sum(pool.released.values())
        print(dict(seen), pool.released, f"at most {fu.llama.max_running} at once")
    assert fu.llama.max_running <= SLOTS
    assert fu.llama.deferred == 0
    assert sum(seen.values()) == REQUESTS
