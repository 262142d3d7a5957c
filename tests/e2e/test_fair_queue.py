"""The fair queue over real sockets: newcomers, batch, full queues and wide requests of several tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import WholeResponse
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, ask, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer
from tests.support.script import Gate, Script, Sleep, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

ANSWER = Write(answer(200, {"choices": []}))
SHORT_S = 0.03
STREAM = "long"


def tenant(name: str, **members: object) -> dict[str, Any]:
    return {"name": name, "key_hashes": [hash_key(f"sg-{name}")], **members}


def key(name: str) -> bytes:
    return b"authorization: Bearer sg-" + name.encode()


class Crowd:
    """Clients of several tenants at one gateway, and the order in which they were answered."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.answered: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, name: str, **members: object) -> asyncio.Task[None]:
        task = asyncio.create_task(self._post(name, **members))
        self._tasks.add(task)
        return task

    def keep_asking(self, name: str, *headers: bytes, **members: object) -> None:
        async def loop() -> None:
            while True:
                await self._post(name, *headers, **members)

        self._tasks.add(asyncio.create_task(loop()))

    async def _post(self, name: str, *headers: bytes, **members: object) -> None:
        got: WholeResponse = await ask(self.gateway.url, key(name), *headers, stream=False, **members)
        if got.status == 200:
            self.answered.append(name)
        else:
            self.refused.append((name, got.error["code"]))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@asynccontextmanager
async def crowd_at(
    slots: int, script: Script | None, *names: str, **admission: int
) -> AsyncIterator[tuple[Crowd, ScriptedUpstream]]:
    fu = ScriptedUpstream(lambda request: script if request.path == CHAT else None, llama=LlamaLike(slots))
    tenants = [tenant(name) for name in names]
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants, admission=admission)) as gateway:
        crowd = Crowd(gateway)
        try:
            yield crowd, fu
        finally:
            await crowd.close()


async def test_a_newcomer_gets_its_share_at_once_whatever_max_tokens_says() -> None:
    """The newcomer comes behind a crowd that asks for 3,000 tokens and takes a moment."""
    async with crowd_at(4, [Sleep(SHORT_S), ANSWER], "crowd", "newcomer") as (crowd, _):
        for _ in range(60):
            crowd.post("crowd", max_tokens=3000)
        await crowd.gateway.until(lambda: len(crowd.answered) >= 8)
        before = len(crowd.answered)
        for _ in range(24):
            crowd.post("newcomer", max_tokens=3000)
        await crowd.gateway.until(lambda: len(crowd.answered) >= before + 40)
        assert crowd.answered[before : before + 40].count("newcomer") >= 14


@pytest.mark.slow
async def test_batch_takes_a_small_part_of_the_slot_time() -> None:
    """Its requests take as long as the others'; there are as many of them."""
    batch = b"x-slotgate-priority: batch"
    async with crowd_at(2, [Sleep(SHORT_S), ANSWER], "chat", "batch") as (crowd, _):
        for _ in range(6):
            crowd.keep_asking("chat")
            crowd.keep_asking("batch", batch)
        await crowd.gateway.until(lambda: len(crowd.answered) >= 90, within=20.0)
        part = crowd.answered.count("batch") / len(crowd.answered)
        assert 0.03 <= part <= 0.25


async def test_a_flood_of_one_tenant_shuts_no_other_tenant_out() -> None:
    gate = Gate()
    bounds = {"max_queue": 8, "max_queue_per_tenant": 8}
    async with crowd_at(1, [gate, ANSWER], "flood", "other", **bounds) as (crowd, fu):
        crowd.post("flood")
        await fu.generation()
        for _ in range(8):
            crowd.post("flood")
        await crowd.gateway.until(lambda: crowd.gateway.scheduler.depth == 8)
        crowd.post("other")
        await crowd.gateway.until(lambda: crowd.refused)
        assert crowd.refused == [("flood", "queue_full")]
        assert crowd.gateway.scheduler.status().by_tenant == {"flood": 7, "other": 1}
        gate.event.set()


@pytest.mark.slow
async def test_a_wide_request_in_a_loop_does_not_stop_its_neighbours() -> None:
    """A stream holds one slot for long, so four slots are never free at once."""
    gate = Gate()

    def script(request: ReceivedRequest) -> Script | None:
        if request.path != CHAT:
            return None
        return [gate if STREAM.encode() in request.body else Sleep(SHORT_S), ANSWER]

    fu = ScriptedUpstream(script, llama=LlamaLike(4))
    tenants = [tenant(name) for name in (STREAM, "chat", "wide")]
    limits = {"queue_timeout_s": 1}
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants, admission=limits)) as gateway:
        crowd = Crowd(gateway)
        crowd.post(STREAM, messages=[{"role": "user", "content": STREAM}])
        await fu.generation()
        for _ in range(3):
            crowd.keep_asking("chat")
        await gateway.until(lambda: len(crowd.answered) >= 6)
        crowd.keep_asking("wide", n=4)
        await gateway.until(lambda: ("wide", "queue_timeout") in crowd.refused, within=10.0)
        assert crowd.answered.count("chat") >= 30
        gate.event.set()
        await crowd.close()
