"""Live requests are shown with their facts and their place in the queue, and can be cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, error_in, running_gateway, settings_for
from tests.support.notation import END, STOP, USE, H, T, answer, chunked
from tests.support.script import Fin, Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
TENANTS = [
    {"name": "a", "key": [{"name": "laptop", "hash": hash_key("sg-a")}]},
    {"name": "b", "key_hashes": [hash_key("sg-b")]},
]
A, B = b"x-api-key: sg-a", b"x-api-key: sg-b"
ENDLESS: Script = [Write(H + chunked(T("a"))), Stall()]


async def shown(gateway: Gateway) -> list[dict[str, Any]]:
    async with await gateway.client() as client:
        await client.request("GET", "/admin/requests", OPERATOR)
        found: list[dict[str, Any]] = (await client.json())["requests"]
        return found


async def cancel(gateway: Gateway, path: str, *headers: bytes) -> int:
    async with await gateway.client() as client:
        await client.request("POST", path, *headers)
        return client.status


async def test_a_client_that_asks_for_its_place_in_the_queue_is_told() -> None:
    gate = Gate()
    fu = ScriptedUpstream(
        scripts={CHAT: [gate, Write(H + chunked(T("a"), STOP, b"data: [DONE]\n\n") + END), Fin()]}
    )
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        clients = [await gateway.client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.send(request_bytes("POST", CHAT, b"x-slotgate-queue-events: 1", json=chat()))
            await gateway.until(lambda: len(gateway.in_flight.contexts) == number + 1)  # noqa: B023
        await gateway.until(lambda: gateway.scheduler.depth == 2)
        gate.event.set()
        heard = []
        for client in clients:
            await client.head()
            heard.append([frame.data async for frame in client.frames()])
        for client in clients:
            client.close()
    assert not any(data.startswith(b": queued") for data in heard[0]), "it never waited"
    assert heard[1][0].startswith(b": queued position=1 eta=")
    assert heard[2][0].startswith(b": queued position=2 eta=")
    assert heard[2][0].endswith(b"s\n\n")
    assert all(frames[-1] == b"data: [DONE]\n\n" for frames in heard)


async def test_a_client_that_does_not_ask_for_its_place_keeps_its_status_while_it_waits() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ENDLESS})
    fu.llama.total_slots = 1
    limits = {"queue_timeout_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, admission=limits)) as gateway:
        async with await gateway.client() as holder:
            await holder.post(CHAT, chat())
            got = await ask(gateway.url)
        assert (got.status, got.error["code"]) == (503, "queue_timeout")


async def test_an_operator_sees_running_waiting_and_ended_requests() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ENDLESS})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        fu.scripts[CHAT] = [Write(H + chunked(T("a"), STOP, USE, b"data: [DONE]\n\n") + END), Fin()]
        assert (await ask(gateway.url, A, b"x-request-id: first")).status == 200
        fu.scripts[CHAT] = ENDLESS
        running, waiting = await gateway.client(), await gateway.client()
        await running.post(CHAT, chat(), A, b"x-request-id: second")
        await waiting.send(request_bytes("POST", CHAT, B, b"x-request-id: third", json=chat()))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        requests = await shown(gateway)
        running.close()
        waiting.close()
    assert [(entry["id"], entry["outcome"]) for entry in requests] == [
        ("third", "queued"),
        ("second", "running"),
        ("first", "ok"),
    ]
    first = requests[-1]
    assert (first["tenant"], first["key"], first["model"], first["backend"]) == ("a", "laptop", "m", "gpu0")
    assert (first["prompt_tokens"], first["completion_tokens"], first["status"]) == (3, 2, 200)
    assert first["total_ms"] >= first["ttft_ms"] >= first["queue_ms"] >= 0


async def started(gateway: Gateway, *headers: bytes) -> RawClient:
    client = await gateway.client()
    await client.post(CHAT, chat(), *headers)
    return client


async def test_an_operator_ends_any_request_and_its_slot_is_free_again() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ENDLESS})
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        client = await started(gateway, A, b"x-request-id: r1")
        other = await started(gateway, B, b"x-request-id: r1")
        assert await cancel(gateway, "/admin/requests/r1/cancel?tenant=b", OPERATOR) == 200
        assert error_in([frame async for frame in other.frames()])["code"] == "cancelled"
        assert [context.tenant.name for context in gateway.in_flight.contexts] == ["a"]
        assert await cancel(gateway, "/admin/requests/r1/cancel", OPERATOR) == 200
        assert error_in([frame async for frame in client.frames()])["code"] == "cancelled"
        assert await cancel(gateway, "/admin/requests/r1/cancel", OPERATOR) == 404
        await fu.at_most_open(0)
        await gateway.until(lambda: gateway.fleet.backends["gpu0"].pool.free == fu.llama.total_slots)
        client.close()
        other.close()


async def test_a_tenant_can_end_only_its_own_requests() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ENDLESS})
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        client = await started(gateway, A, b"x-request-id: r1")
        assert await cancel(gateway, "/v1/requests/r1/cancel", B) == 404
        assert await cancel(gateway, "/admin/requests/r1/cancel", A) == 401
        assert await cancel(gateway, "/v1/requests/r1/cancel", A) == 200
        assert error_in([frame async for frame in client.frames()])["code"] == "cancelled"
        client.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_waiting_request_is_ended_with_its_status(stream: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ENDLESS})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        holder = await started(gateway, A)
        waiting = await gateway.client()
        await waiting.send(request_bytes("POST", CHAT, A, b"x-request-id: r2", json=chat(stream=stream)))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        assert await cancel(gateway, "/v1/requests/r2/cancel", A) == 200
        await waiting.head()
        assert waiting.status == 409
        assert gateway.scheduler.depth == 0
        holder.close()
        waiting.close()


async def test_a_whole_answer_that_comes_as_its_request_is_cancelled_is_not_sent() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, {"choices": []}))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        [backend] = gateway.fleet.backends.values()

        def the_answer_has_come() -> None:
            assert gateway.in_flight.cancel("an-id", None) == 1

        backend.pool.on_idle.append(the_answer_has_come)
        got = await ask(gateway.url, b"x-request-id: an-id", stream=False)
        assert (got.status, got.error["code"]) == (409, "cancelled")
