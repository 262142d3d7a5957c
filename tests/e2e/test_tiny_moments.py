"""Limits, keep-alives and leaving clients within the few milliseconds that an event loop tells apart.

uvloop counts in whole milliseconds, and makes no timer for a time that is less than half a millisecond away.
Here events happen just before, at and just after another event. In every case each client gets a proper end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import orjson
import pytest

from slotgate.gateway.backends import circuit_breaker as circuit
from slotgate.gateway.settings import Settings
from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, PING, STOP, H, T, answer, chunked
from tests.support.script import Fin, Rst, Script, Sleep, Stall, Step, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUESTS, AT_ONCE = 150, 30
MOMENTS_S = (0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.005)
WHOLE = answer(200, {"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


def tiny(dice: random.Random) -> float:
    return dice.choice([0.0002, 0.0005, *MOMENTS_S, dice.uniform(0.0002, 0.005)])


def script(dice: random.Random, request: ReceivedRequest) -> Script:
    def pause() -> Step:
        return Sleep(dice.choice([0.0, tiny(dice)]))

    if not request.json()["stream"]:
        return [pause(), Write(WHOLE)]
    said = [step for _ in range(dice.randrange(6)) for step in (Write(chunked(T("a"))), pause())]
    pings = [step for _ in range(dice.randrange(3)) for step in (Write(chunked(PING)), pause())]
    ends: list[list[Step]] = [
        *[[Write(chunked(STOP, DONE)), pause(), Write(END), Fin()]] * 4,
        [Write(chunked(STOP, DONE)), Stall()],
        [Fin()],
        [Rst()],
        [Stall()],
    ]
    return [pause(), Write(H), pause(), *pings, *said, *dice.choice(ends)]


def limits(dice: random.Random, url: str) -> Settings:
    def limit(likely: float, else_s: float) -> float:
        return dice.choice(MOMENTS_S) if dice.random() < likely else else_s

    return settings_for(
        url,
        streaming={
            "keepalive": dice.choice(["comment", "chunk"]),
            "keepalive_interval_s": limit(0.9, 0.05),
            "terminal_grace_s": limit(0.5, 0.05),
        },
        timeouts={
            "first_byte_s": limit(0.3, 0.1),
            "idle_s": limit(0.3, 0.1),
            "total_s": limit(0.2, 0.5),
        },
        admission={"queue_timeout_s": limit(0.5, 0.5), "max_queue": 1000},
    )


async def one(gateway: Gateway, dice: random.Random, seen: Counter[str]) -> None:
    body = chat(stream=dice.random() < 0.9)
    async with await RawClient.connect(gateway.url) as client:
        await client.send(request_bytes("POST", CHAT, b"x-slotgate-queue-events: 1", json=body))
        if dice.random() < 0.3:
            await asyncio.sleep(tiny(dice))
            seen["left"] += 1
            dice.choice([client.close, client.reset])()
            return
        await client.head(within=20)
        said = await client.body(within=20)
        assert client.clean_end, (client, said)
        if client.status == 200 and body["stream"]:
            *_, last = said.removesuffix(b"\n\n").split(b"\n\n")
            end = (
                "done"
                if last == b"data: [DONE]"
                else orjson.loads(last.removeprefix(b"data: "))["error"]["code"]
            )
        else:
            whole = orjson.loads(said)
            end = "whole" if client.status == 200 else whole["error"]["code"]
        seen[end] += 1


@pytest.mark.parametrize("seed", range(7))
async def test_every_client_gets_a_proper_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "TRIPS_AFTER", REQUESTS)
    dice = random.Random(seed)
    seen: Counter[str] = Counter()
    llama = LlamaLike(dice.choice([2, 8, 64]))
    fu = ScriptedUpstream(scripts={CHAT: lambda request: script(dice, request)}, llama=llama)
    async with fu, running_gateway(limits(dice, fu.url)) as gateway:
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated() -> None:
            async with gate:
                await one(gateway, dice, seen)

        await asyncio.gather(*(gated() for _ in range(REQUESTS)))
    assert "internal_error" not in seen, seen
    assert 0 < seen["left"] < REQUESTS, seen
