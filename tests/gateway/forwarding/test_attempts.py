"""The books of backends and requests between two attempts: who is told of a failure, and where a request is.

Every way to ask is tried: a stream, an answer that is read whole, and an array that is asked piece by piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.http.errors import CapacityError
from slotgate.gateway.settings import Settings
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, chat, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.script import Fin, Gate, Script
from tests.support.virtual_gateway import VirtualGateway, VirtualUpstream, virtual_gateway
from tests.support.virtual_time import run_virtual

KEY = b"authorization: Bearer sg-a"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "stream": (CHAT, chat()),
    "whole": (CHAT, chat(stream=False)),
    "array": ("/v1/embeddings", {"input": ["a", "b"], "model": "m"}),
}
ways = pytest.mark.parametrize("way", WAYS)


def settings(*upstreams: VirtualUpstream) -> Settings:
    """The backends are asked for their health twice an hour, unless a request says that one has failed."""
    backends = [
        {"name": f"gpu{number}", "url": fu.url, "models": ["m"], "health_interval_s": 1800}
        for number, fu in enumerate(upstreams)
    ]
    return settings_for(backend=backends, tenant=[{"name": "a", "key_hashes": [hash_key("sg-a")]}])


@asynccontextmanager
async def running(*upstreams: VirtualUpstream) -> AsyncIterator[VirtualGateway]:
    async with virtual_gateway(settings(*upstreams)) as gateway:
        backends = gateway.parts.runtime.fleet.backends.values()
        await gateway.until(lambda: all(backend.pool.admitting for backend in backends))
        yield gateway


async def asked(gateway: VirtualGateway, way: str) -> RawClient:
    path, body = WAYS[way]
    client = await gateway.client()
    await client.send(request_bytes("POST", path, KEY, json=body))
    return client


@ways
@pytest.mark.parametrize("event", ["unload", "revocation"])
def test_a_request_that_waits_once_more_runs_nowhere(way: str, event: str) -> None:
    """An unload of the first backend leaves it alone, and a revoked key ends it, as any that waits."""

    async def main() -> tuple[int, int, bool, list[str | None]]:
        async with VirtualUpstream(llama=LlamaLike(1)) as fu, running(fu) as gateway:
            runtime = gateway.parts.runtime
            fu.llama.loading = True
            client = await asked(gateway, way)
            await gateway.until(lambda: fu.generations and runtime.scheduler.depth)
            [(answer, _)] = runtime.in_flight.answers
            runs = answer.runs_on("gpu0")
            if event == "unload":
                runtime.in_flight.cancel_all(CapacityError(503, "no_backend", "it was unloaded"), "gpu0")
            else:
                runtime.in_flight.revoke(lambda _: False)
            await asyncio.sleep(0.1)
            fu.llama.loading = False
            status = int((await client.head()).start_line.split(b" ")[1])
            await client.body()
            await gateway.until_idle()
            return status, len(fu.generations), runs, [record.backend for record in gateway.records]

    status, asked_for, runs, recorded = run_virtual(main())
    assert not runs
    assert recorded == ["gpu0"], "the record names the backend that was asked"
    assert status == (200 if event == "unload" else 401)
    pieces = 2 if way == "array" else 1
    assert asked_for == 1 + (pieces if event == "unload" else 0)


@ways
@pytest.mark.parametrize("event", ["unload", "revocation"])
def test_a_request_that_runs_ends_with_its_backend_and_not_with_its_key(way: str, event: str) -> None:
    async def main() -> int:
        gate = Gate()
        path, _ = WAYS[way]
        begun: Script = [gate, Fin()]
        async with VirtualUpstream(scripts={path: begun}, llama=LlamaLike(1)) as fu, running(fu) as gateway:
            in_flight = gateway.parts.runtime.in_flight
            client = await asked(gateway, way)
            await gateway.until(lambda: fu.generations)
            if event == "unload":
                in_flight.cancel_all(CapacityError(503, "no_backend", "it was unloaded"), "gpu0")
            else:
                assert in_flight.revoke(lambda _: False) == 0
            gate.event.set()
            status = int((await client.head()).start_line.split(b" ")[1])
            await client.body()
            await gateway.until_idle()
            return status

    assert run_virtual(main()) == (503 if event == "unload" else 502)


@ways
@pytest.mark.parametrize("fault", ["refuses", "loads"])
def test_the_last_attempt_also_shows_that_its_backend_is_not_there(way: str, fault: str) -> None:
    """Otherwise the second backend would be given requests until its next health check, in half an hour."""

    async def main() -> tuple[int, list[bool]]:
        first, second = VirtualUpstream(llama=LlamaLike(8)), VirtualUpstream(llama=LlamaLike(2))
        async with first, second, running(first, second) as gateway:
            for fu in (first, second):
                fu.llama.loading = fault == "loads"
                if fault == "refuses":
                    fu.stop_listening()
            client = await asked(gateway, way)
            status = int((await client.head()).start_line.split(b" ")[1])
            await client.body()
            backends = gateway.parts.runtime.fleet.backends.values()
            return status, [backend.pool.admitting for backend in backends]

    assert run_virtual(main()) == (502 if fault == "refuses" else 503, [False, False])


@pytest.mark.parametrize("way", ["stream", "whole"])
@pytest.mark.parametrize("lost", ["before", "after"])
def test_nothing_is_remembered_of_a_backend_that_is_no_more(way: str, lost: str) -> None:
    """Its last request is lost before the configuration leaves it out, or after that."""

    async def main() -> tuple[int, int]:
        gate = Gate()
        dying: Script = [gate, Fin()]
        stays = VirtualUpstream(llama=LlamaLike(1))
        async with VirtualUpstream(scripts={CHAT: dying}, llama=LlamaLike(8)) as goes, stays:
            async with running(goes, stays) as gateway:
                runtime = gateway.parts.runtime
                client = await asked(gateway, way)
                await gateway.until(lambda: goes.generations)
                losses = runtime.retries._memory._losses
                if lost == "before":
                    gate.event.set()
                    await client.head()
                noted = len(losses)
                backend = {"name": "other", "url": stays.url, "models": ["m"]}
                runtime.apply(settings_for(backend=[backend]))
                gate.event.set()
                await gateway.until_idle()
                await gateway.until(lambda: len(runtime.fleet.serving) == 1)
                return noted, len(losses)

    assert run_virtual(main()) == (1 if lost == "before" else 0, 0)
