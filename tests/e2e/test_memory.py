"""A request is freed when it ends, however it ends, with all bytes that it received and sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.e2e.test_endings import WAYS, EndpointCase
from tests.support.answer import exchange
from tests.support.client import RawClient, request_bytes
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
"""Makes every body large, so that it is found whatever object refers to it."""


class LargeVisit(EndpointCase):
    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        self.members = {**self.members, "user": FILLER}


class LargeArray(LargeVisit):
    """A request whose array is asked piece by piece."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        assert self.way.sample.wide is not None
        self.members = {**self.members, **self.way.sample.wide}


ARRAYS = [way for way, stream in WAYS if not stream and way.sample.wide and "n" not in way.sample.wide]
CASES = [*((LargeVisit, way, stream) for way, stream in WAYS), *((LargeArray, way, False) for way in ARRAYS)]
ENDINGS = [name for name in vars(EndpointCase) if name.startswith("with_") and name != "with_all_slots_taken"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "way", "stream"), CASES, ids=[f"{case.__name__} {way} {stream}" for case, way, stream in CASES]
)
async def test_scenario_114_no_ended_request_waits_for_the_garbage_collector(
    case: type[LargeVisit], way: Way, stream: bool
) -> None:
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
        visit = case(way, stream, gateway, fu)
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
REQUESTS = 4
KEY = b"x-api-key: sg-a"
JSON = b"content-type: application/json"
ALLOWED = 80 * MIB
"""Memory that the allocator may keep: a body and a copy of it. Four bodies that stay take 120 MiB."""


def resident(served: Served) -> int:
    lines = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def large(
    *, model: str = "m", stream: bool = False, size: int = 30 * MIB, end: bytes = b"}", text: bytes = b""
) -> bytes:
    wanted = b"true" if stream else b"false"
    head = b'{"model":"%b","stream":%b,"messages":[{"role":"user","content":"' % (model.encode(), wanted)
    return request_bytes("POST", CHAT, KEY, JSON, body=head + text + b"x" * size + b'"}]' + end)


async def until(condition: Callable[[], bool], within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


async def leave(served: Served, fu: ScriptedUpstream) -> None:
    async with await served.client() as client:
        await client.send(large(stream=True))
        await until(lambda: bool(fu.generations))


async def leave_the_upload(served: Served, _: ScriptedUpstream) -> None:
    async with await served.client() as client:
        await client.send(large()[: 20 * MIB])


LargeEnding = Callable[[Served, ScriptedUpstream], Awaitable[None]]


def answered(status: int, request: Callable[[], bytes]) -> LargeEnding:
    async def ask(served: Served, _: ScriptedUpstream) -> None:
        assert (await exchange(served.url, request(), within=20)).status == status

    return ask


LARGE_ENDINGS: dict[str, LargeEnding] = {
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
                await LARGE_ENDINGS[ending](served, fu)
                fu.generations.clear()
            before = resident(served)
            for _ in range(REQUESTS):
                await LARGE_ENDINGS[ending](served, fu)
                fu.requests.clear()
                fu.generations.clear()
            grown = resident(served) - before
    print(f"{ending}: {grown / MIB / REQUESTS:+.1f} MiB a request")
    assert grown < ALLOWED


HELD = 10
"""The number of bodies: so many that a body that the allocator keeps for the next request hardly counts."""
SIZE = 16 * MIB


class Uploads:
    """Requests on connections that stay open, and the memory that they take."""

    def __init__(self, served: Served, posts: list[bytes]) -> None:
        self.clients: list[RawClient] = []
        self._served = served
        self._posts = posts
        self._before = resident(served)

    async def __aenter__(self) -> Self:
        for post in self._posts:
            self.clients.append(await self._served.client())
            await self.clients[-1].send(post)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()

    def cost(self) -> float:
        """Return the memory for each byte of a body."""
        return (resident(self._served) - self._before) / sum(map(len, self._posts))

    async def steady_cost(self) -> float:
        """Return the cost once all bodies are there and the memory has not changed for a while."""
        await until(lambda: self.cost() > 0.9)
        seen, since = self.cost(), time.monotonic()
        while time.monotonic() < since + 0.5:
            await asyncio.sleep(0.05)
            if abs(self.cost() - seen) > 0.01:
                seen, since = self.cost(), time.monotonic()
        return seen


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
            async with Uploads(served, [large(stream=stream, size=SIZE, text=text)] * HELD) as uploads:
                cost = await uploads.steady_cost()
    print(f"a waiting body costs {cost:.2f} of its size")
    assert cost < 1.3


@pytest.mark.slow
async def test_body_of_a_stream_is_let_go_when_its_answer_begins(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]}, llama=LlamaLike(HELD))
    async with fu, served_gateway(tmp_path, backend_table(fu.url)) as served:
        await exchange(served.url, large(end=b"]"), within=20)
        async with Uploads(served, [large(stream=True, size=SIZE)] * HELD) as uploads:
            for client in uploads.clients:
                assert (await client.head(within=60)).start_line.endswith(b"200 OK")
            await until(lambda: uploads.cost() < 0.2, within=60)
