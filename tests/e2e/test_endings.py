"""A tenant that may have one request at a time may send the next, however the last one ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slotgate.admission import Demand, Outcome
from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.backends.backend import Backend
from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.endpoints import MODEL, Way
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import H, T, answer, chunked, error_body
from tests.support.script import Fin, Rst, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KEY = b"x-api-key: sg-a"
SLOTS = 40
"""Many, because abandoned slots stay in quarantine for a while, and tests need others meanwhile."""


WAYS = [
    (Way(endpoint, endpoint.paths[0]), stream)
    for endpoint in ENDPOINTS
    if endpoint.takes_slot
    for stream in sorted({False, endpoint.body_format.streams})
]


class EndpointCase:
    """A test of one endpoint, for a tenant that may have one request at a time."""

    def __init__(self, way: Way, stream: bool, gateway: Gateway, fu: ScriptedUpstream) -> None:
        self.way = way
        self.members: dict[str, Any] = {"stream": True} if stream else {}
        self.gateway = gateway
        self.fu = fu
        self.success: Script = way.script() if stream else [Write(answer(200, way.sample.whole))]
        begun = [Write(H + way.head())] if stream else [Write(answer(200, way.sample.whole)[:-5])]
        self.begun: Script = begun

    @property
    def request(self) -> bytes:
        return self.way.request(KEY, **self.members)

    async def ask(self, script: Script) -> int:
        """Send a request, read the whole answer, however it ends, and return its status."""
        self.fu.scripts[self.way.upstream] = script
        async with await self.gateway.client() as client:
            await client.send(self.request)
            return await status_of(client)

    async def leave_after(self, script: Script, condition: Callable[[], object]) -> None:
        self.fu.scripts[self.way.upstream] = script
        async with await self.gateway.client() as client:
            await client.send(self.request)
            await self.gateway.until(condition)
            assert await self.also() == 429, "it may have one at a time"
        await self.gateway.until(lambda: not self.gateway.in_flight.contexts)

    async def also(self) -> int:
        return (await ask(self.gateway.url, KEY, stream=False)).status

    async def with_all_slots_taken(self, action: Callable[[], Awaitable[None]]) -> None:
        scheduler = self.gateway.scheduler
        pool = self.gateway.fleet.backends["gpu0"].pool
        await self.gateway.until(lambda: pool.free == SLOTS)  # no slot comes back from quarantine later
        held = [scheduler.submit(Demand("other", "m"), lambda: None).lease for _ in range(SLOTS)]
        try:
            await action()
        finally:
            for lease in held:
                assert lease is not None
                lease.release(Outcome.UNUSED)

    # -- how it may end

    async def with_success(self) -> None:
        assert await self.ask(self.success) == 200

    async def with_the_client_gone_from_the_queue(self) -> None:
        async def leave() -> None:
            await self.leave_after(self.success, lambda: self.gateway.scheduler.depth == 1)

        await self.with_all_slots_taken(leave)

    async def with_the_client_gone_before_the_head(self) -> None:
        asked = len(self.fu.generations)
        await self.leave_after([Stall()], lambda: len(self.fu.generations) > asked)

    async def with_the_client_gone_from_the_middle(self) -> None:
        asked = len(self.fu.generations)
        await self.leave_after([*self.begun, Stall()], lambda: len(self.fu.generations) > asked)

    async def with_an_answer_of_400(self) -> None:
        assert await self.ask([Write(answer(400, error_body(400, "no", "odd")))]) == 400

    async def with_an_answer_of_500(self) -> None:
        assert await self.ask([Write(answer(500, error_body(500, "no", "odd")))]) == 500

    async def with_an_answer_of_503(self) -> None:
        status = await self.ask([Write(answer(503, error_body(503, "no", "odd")))])
        assert status in (503, 529)

    async def with_an_answer_of_401(self) -> None:
        assert await self.ask([Write(answer(401, error_body(401, "no", "odd")))]) == 502

    async def with_a_reset_at_once(self) -> None:
        assert await self.ask([Rst()]) == 502

    async def with_a_reset_in_the_middle(self) -> None:
        assert await self.ask([*self.begun, Rst()]) in (200, 502)

    async def with_an_end_in_the_middle(self) -> None:
        assert await self.ask([*self.begun, Fin()]) in (200, 502)

    async def with_what_is_not_http(self) -> None:
        assert await self.ask([Write(b"no HTTP\r\n\r\n"), Fin()]) == 502

    async def with_silence_before_the_head(self) -> None:
        assert await self.ask([Stall()]) == 504

    async def with_silence_in_the_middle(self) -> None:
        assert await self.ask([*self.begun, Stall()]) in (200, 504)

    async def with_nobody_listening(self) -> None:
        self.fu.stop_listening()
        self.fu.abort_all()
        assert await self.ask(self.success) in (502, 503, 529)
        await self.fu.listen()
        await self.gateway.until(lambda: self.gateway.fleet.ready)

    async def with_the_death_of_its_backend(self) -> None:
        asked = len(self.fu.generations)
        died = asyncio.ensure_future(self.ask([Stall()]))
        await self.gateway.until(lambda: len(self.fu.generations) > asked)
        self.fu.stop_listening()
        self.fu.abort_all()
        assert await died == 502
        await self.fu.listen()
        await self.gateway.until(lambda: self.gateway.fleet.ready)

    async def with_a_body_that_is_none(self) -> None:
        kind = self.way.body()[1]
        assert await self.sent(request_bytes("POST", self.way.path, KEY, *kind, body=b"{")) == 400

    async def with_a_model_that_is_unknown(self) -> None:
        assert await self.sent(self.way.request(KEY, model="none")) == 404

    async def with_a_body_that_is_too_large(self) -> None:
        assert await self.sent(self.way.request(KEY, user="x" * 10_000)) == 413

    async def with_no_slot_in_time(self) -> None:
        async def wait() -> None:
            assert await self.ask(self.success) in (503, 529)

        await self.with_all_slots_taken(wait)

    async def with_an_order_to_end(self) -> None:
        self.fu.scripts[self.way.upstream] = [Stall()]
        asked = len(self.fu.generations)
        async with await self.gateway.client() as client:
            await client.send(self.way.request(KEY, b"x-request-id: r1", **self.members))
            await self.gateway.until(lambda: len(self.fu.generations) > asked)
            assert self.gateway.in_flight.cancel("r1", "a") == 1
            assert await status_of(client) == 409

    async def with_a_fault_of_ours(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Backend, "stream_request", _fails)
            patch.setattr(Backend, "whole_request", _fails)
            assert await self.ask(self.success) == 500
        self.gateway.log.expect("internal error")

    async def sent(self, request: bytes) -> int:
        async with await self.gateway.client() as client:
            await client.send(request)
            return await status_of(client)


async def status_of(client: RawClient) -> int:
    await client.head()
    await client.body()
    return client.status


def _fails(*_: object) -> ReceivedRequest:
    raise LookupError("a fault of ours")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "stream"), WAYS, ids=[f"{way} {stream}" for way, stream in WAYS])
async def test_scenario_021_the_next_request_of_a_key_is_served_however_the_last_one_ended(
    way: Way, stream: bool
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: []}, llama=LlamaLike(SLOTS, model=MODEL))
    tenants = [{"name": "a", "key_hashes": [hash_key("sg-a")], "max_concurrent": 1}]
    given: dict[str, Any] = {
        "tenant": tenants,
        "server": {"port": 0, "max_body_bytes": 5000},
        "timeouts": {"first_byte_s": 0.3, "idle_s": 0.3},
        "admission": {"queue_timeout_s": 0.5},
    }
    endings = [getattr(EndpointCase, name) for name in vars(EndpointCase) if name.startswith("with_")]
    async with fu, running_gateway(settings_for(fu.url, **given)) as gateway:
        visit = EndpointCase(way, stream, gateway, fu)
        for ending in endings:
            if ending is EndpointCase.with_all_slots_taken:
                continue
            await ending(visit)
            assert await visit.ask(visit.success) == 200, ending.__name__
        assert len(endings) > 20


async def test_scenario_023_a_refused_request_costs_nothing() -> None:
    """The tenant may have one request at a time and two a minute.

    The requests that are refused in between use up none of the two.
    """
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]}, llama=LlamaLike(8))
    tenants = [
        {"name": "a", "key_hashes": [hash_key("sg-a")], "max_concurrent": 1, "requests_per_minute": 2},
        {"name": "b", "key_hashes": [hash_key("sg-b")], "max_concurrent": 5},
    ]
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants)) as gateway:
        async with await gateway.client() as running:
            await running.post(CHAT, chat(), KEY)
            refused = [await ask(gateway.url, KEY) for _ in range(3)]
            assert {got.error["code"] for got in refused} == {"tenant_concurrency"}
        await gateway.until(lambda: gateway.idle)
        fu.scripts.clear()
        assert (await ask(gateway.url, KEY, stream=False)).status == 200
        assert (await ask(gateway.url, KEY, stream=False)).error["code"] == "rate_limited"

        fu.scripts[CHAT] = [Stall()]
        before = len(fu.generations)
        clients = [await gateway.client() for _ in range(50)]
        asked = request_bytes("POST", CHAT, b"x-api-key: sg-b", json=chat())
        await asyncio.gather(*(client.send(asked) for client in clients))
        await gateway.until(lambda: len(gateway.log.of("request")) == 6 + 45)
        await gateway.until(lambda: len(fu.generations) == before + 5)
        assert gateway.scheduler.leases_by_tenant == {"b": 5}
        for client in clients:
            client.close()
