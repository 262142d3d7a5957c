"""A request is freed when it ends, however it ends, and with it everything that came and went with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.e2e.test_endings import WAYS, EndpointCase
from tests.support.answer import exchange
from tests.support.client import request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.endpoints import MODEL, Way
from tests.support.garbage import cycles, without_collector
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, answer, chunked, error_body
from tests.support.script import Fin, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import Served, backend_table, served_gateway

pytestmark = pytest.mark.anyio

SLOTS = 40
FILLER = "x" * 3000
"""Makes every body so large that it is found, whatever refers to it."""


class LargeVisit(EndpointCase):
    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        self.members = {**self.members, "user": FILLER}


ENDINGS = [name for name in vars(EndpointCase) if name.startswith("with_") and name != "with_all_slots_taken"]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "stream"), WAYS, ids=[f"{way} {stream}" for way, stream in WAYS])
async def test_no_ended_request_waits_for_the_garbage_collector(way: Way, stream: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: []}, llama=LlamaLike(SLOTS, model=MODEL))
    tenants = [{"name": "a", "key_hashes": [hash_key("sg-a")], "max_concurrent": 1}]
    given: dict[str, Any] = {
        "tenant": tenants,
        "server": {"port": 0, "max_body_bytes": 8000},
        "timeouts": {"first_byte_s": 0.3, "idle_s": 0.3},
        "admission": {"queue_timeout_s": 0.5},
    }
    found: dict[str, list[str]] = {}
    async with fu, running_gateway(settings_for(fu.url, **given)) as gateway:
        visit = LargeVisit(way, stream, gateway, fu)
        for name in ENDINGS:
            with without_collector():
                await getattr(visit, name)()
                await gateway.until(lambda: gateway.idle and not gateway.server.connections.tasks)
                await gateway.until(lambda: not gateway.server.connections.connections)
                await asyncio.sleep(0.01)
                if left := cycles():
                    found[name] = left
    assert found == {}, "\n".join(f"{name}: {left}" for name, left in found.items())


MIB = 1024 * 1024
REQUESTS = 5
KEY = b"x-api-key: sg-a"
JSON = b"content-type: application/json"
ALLOWED = 100 * MIB
"""One body and a copy of it may stay in the allocator. Five bodies that stay are 150 MiB."""


def resident(served: Served) -> int:
    lines = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def large(
    *, model: str = "m", stream: bool = False, size: int = 30 * MIB, end: bytes = b"}", text: bytes = b""
) -> bytes:
    wanted = b"true" if stream else b"false"
    head = b'{"model":"%b","stream":%b,"messages":[{"role":"user","content":"' % (model.encode(), wanted)
    return request_bytes("POST", CHAT, KEY, JSON, body=head + text + b"x" * size + b'"}]' + end)


async def leave(served: Served) -> None:
    async with await served.client() as client:
        await client.send(large(stream=True))
        await asyncio.sleep(0.3)


async def leave_the_upload(served: Served) -> None:
    async with await served.client() as client:
        await client.send(large()[: 20 * MIB])


def answered(status: int, request: Callable[[], bytes]) -> Callable[[Served], Awaitable[None]]:
    async def ask(served: Served) -> None:
        assert (await exchange(served.url, request(), within=20)).status == status

    return ask


LARGE_ENDINGS: dict[str, Callable[[Served], Awaitable[None]]] = {
    "success": answered(200, large),
    "success as a stream": answered(200, lambda: large(stream=True)),
    "400": answered(400, lambda: large(end=b"]")),
    "400 from the backend": answered(400, lambda: large(model="refused")),
    "404": answered(404, lambda: large(model="none")),
    "413": answered(413, lambda: large(size=33 * MIB)),
    "429": answered(429, lambda: large(model="m").replace(b"sg-a", b"sg-b")),
    "the client left": leave,
    "the client left its upload": leave_the_upload,
}


@pytest.mark.quiet
@pytest.mark.slow
@pytest.mark.parametrize("ending", LARGE_ENDINGS)
async def test_bodies_of_30_mb_leave_nothing_in_memory(ending: str, tmp_path: Path) -> None:
    ways: dict[bytes, Script] = {
        b'"model":"refused"': [Write(answer(400, error_body(400, "no", "odd")))],
        b'"stream":true': [Write(H + chunked(STOP, DONE) + END), Fin()],
    }
    if ending == "the client left":
        ways[b'"stream":true'] = [Stall()]
    whole: Script = [Write(answer(200, {"choices": []}))]

    def script(request: ReceivedRequest) -> Script:
        return next((script for sign, script in ways.items() if sign in request.body[:300]), whole)

    fu = ScriptedUpstream(script, llama=LlamaLike(SLOTS))
    tenants = [("a", "sg-a", ""), ("b", "sg-b", "requests_per_minute = 1\n")]
    tables = [
        f'[[tenant]]\nname = "{name}"\nkey_hashes = ["{hash_key(key)}"]\n{more}'
        for name, key, more in tenants
    ]
    async with fu:
        backend = backend_table(fu.url).replace('["m"]', '["m", "refused"]')
        async with served_gateway(tmp_path, "\n".join([backend, *tables])) as served:
            if ending == "429":
                small = request_bytes("POST", CHAT, b"x-api-key: sg-b", json=chat(stream=False, model="m"))
                await exchange(served.url, small, within=20)
            for _ in range(2):
                await LARGE_ENDINGS[ending](served)
            before = resident(served)
            for _ in range(REQUESTS):
                await LARGE_ENDINGS[ending](served)
                fu.requests.clear()
                fu.generations.clear()
            grown = resident(served) - before
    print(f"{ending}: {grown / MIB / REQUESTS:+.1f} MiB a request")
    assert grown < ALLOWED


HELD = 10
"""So many that a body or two that the allocator keeps for the next request hardly count."""
SIZE = 24 * MIB


async def growth(served: Served, posts: list[bytes], settle_s: float = 2.5) -> float:
    """Send the requests on connections that stay open, and return the memory for each byte of a body."""
    before = resident(served)
    clients = [await served.client() for _ in posts]
    try:
        for client, post in zip(clients, posts, strict=True):
            await client.send(post)
            await asyncio.sleep(0.2)
        await asyncio.sleep(settle_s)
        return (resident(served) - before) / sum(map(len, posts))
    finally:
        for client in clients:
            client.close()


@pytest.mark.quiet
@pytest.mark.slow
@pytest.mark.parametrize("text", [b"x", "\U0001f600".encode()], ids=["ASCII", "emoji"])
@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
async def test_waiting_body_costs_little_more_than_its_size(
    stream: bool, text: bytes, tmp_path: Path
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]}, llama=LlamaLike(1))
    async with fu, served_gateway(tmp_path, backend_table(fu.url)) as served:
        async with await served.client() as running:
            await running.send(request_bytes("POST", CHAT, json=chat()))
            await exchange(served.url, large(end=b"]"), within=20)
            cost = await growth(served, [large(stream=stream, size=SIZE, text=text)] * HELD)
    print(f"a waiting body costs {cost:.2f} of its size")
    assert cost < 1.3


@pytest.mark.quiet
@pytest.mark.slow
async def test_body_of_a_stream_is_let_go_when_its_answer_begins(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]}, llama=LlamaLike(HELD))
    async with fu, served_gateway(tmp_path, backend_table(fu.url)) as served:
        await exchange(served.url, large(end=b"]"), within=20)
        cost = await growth(served, [large(stream=True, size=SIZE)] * HELD)
    print(f"the body of a running stream costs {cost:.2f} of its size")
    assert cost < 0.3
