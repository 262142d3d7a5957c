"""Bodies that arrive and answers that are not read count for their tenant, as requests and as bytes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.server.connection import ClientConnection
from tests.support.answer import exchange
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer
from tests.support.script import Fin, Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KIB = 1024
TYPE = b"content-type: application/json"
SLOT_PATHS = [CHAT, "/completion", "/v1/embeddings", "/v1/messages", "/v1/audio/transcriptions"]
TWO_TENANTS: dict[str, Any] = {
    "admission": {"max_queue_bytes": 100 * KIB},
    "tenant": [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in ("a", "b")],
}
PATHS = [*SLOT_PATHS, "/tokenize"]


def tenant(name: str, **limits: object) -> dict[str, Any]:
    return {"name": name, "key_hashes": [hash_key(f"sg-{name}")], **limits}


def key(name: str) -> bytes:
    return f"x-api-key: sg-{name}".encode()


def head_of(path: str, name: str, size: int) -> bytes:
    kind = TYPE if "audio" not in path else b"content-type: multipart/form-data; boundary=x"
    return request_bytes("POST", path, kind, key(name), b"content-length: %d" % size)


async def arriving(gateway: Gateway, path: str, name: str, size: int, sent: int) -> RawClient:
    """Begin a request, and send a part of its body."""
    client = await gateway.client()
    start = b'{"prompt":"'
    if "audio" in path:
        start = b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n"
    await client.send(head_of(path, name, size) + start + b"x" * (sent - len(start)))
    return client


def with_small_send_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel take little of an answer that is not read."""
    made = ClientConnection.connection_made

    def made_small(protocol: ClientConnection, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    monkeypatch.setattr(ClientConnection, "connection_made", made_small)


@pytest.mark.parametrize("path", SLOT_PATHS)
async def test_a_request_whose_body_arrives_is_one_of_its_tenants_requests(path: str) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(4))
    tenants = [tenant("a", max_concurrent=1), tenant("b")]
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants)) as gateway:
        async with await arriving(gateway, path, "a", 30 * KIB, 20 * KIB):
            await gateway.until(lambda: gateway.parts.runtime.bodies.held == 20 * KIB)
            refused = await exchange(gateway.url, head_of(path, "a", 30 * KIB))
            assert (refused.status, refused.header(b"x-slotgate-reason")) == (429, b"tenant_concurrency")
            assert (await ask(gateway.url, key("b"), stream=False)).status == 200
        await gateway.until(lambda: not gateway.parts.runtime.bodies.held)
        assert (await ask(gateway.url, key("a"), stream=False)).status == 200


async def test_a_minutes_requests_and_a_days_tokens_are_looked_at_before_the_body_is_read() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(4))
    tenants = [tenant("few", requests_per_minute=1), tenant("poor", tokens_per_day=1)]
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants)) as gateway:
        codes = []
        for name in ("few", "poor"):
            await ask(gateway.url, key(name), stream=False, max_tokens=1)
            codes.append(
                (await exchange(gateway.url, head_of(CHAT, name, 30 * KIB))).header(b"x-slotgate-reason")
            )
    assert codes == [b"rate_limited", b"quota_exceeded"]


@pytest.mark.parametrize("path", PATHS)
async def test_bodies_that_arrive_keep_to_the_budget(path: str) -> None:
    """Ten clients send 24 of 25 KiB each; 100 KiB may be held."""
    fu = ScriptedUpstream(llama=LlamaLike(4))
    async with fu, running_gateway(settings_for(fu.url, **TWO_TENANTS)) as gateway, AsyncExitStack() as stack:
        bodies = gateway.parts.runtime.bodies
        for _ in range(4):
            await stack.enter_async_context(await arriving(gateway, path, "a", 25 * KIB, 24 * KIB))
        await gateway.until(lambda: bodies.held == 96 * KIB)
        for _ in range(6):
            refused = await exchange(gateway.url, head_of(path, "a", 25 * KIB))
            assert (refused.status, refused.header(b"x-slotgate-reason")) == (429, b"queue_full")
        assert bodies.held == 96 * KIB
        await stack.enter_async_context(await arriving(gateway, path, "b", 25 * KIB, 24 * KIB))
        await gateway.until(lambda: bodies.held_by("b") == 24 * KIB)
        assert bodies.held_by("a") == 72 * KIB, "the tenant with most has lost its newest body"
        await gateway.until(lambda: [e["code"] for e in gateway.log.of("request")].count("queue_full") == 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_body_that_waits_gives_way_and_one_that_is_sent_does_not(*, stream: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: []}, llama=LlamaLike(1))
    async with fu, running_gateway(settings_for(fu.url, **TWO_TENANTS)) as gateway, AsyncExitStack() as stack:
        bodies = gateway.parts.runtime.bodies
        clients = [await stack.enter_async_context(await gateway.client()) for _ in range(3)]
        for number, client in enumerate(clients):
            request = chat("x" * 40 * KIB, stream=stream)
            await client.send(request_bytes("POST", CHAT, key("ab"[number // 2]), json=request))
            await gateway.until(lambda: gateway.scheduler.leases == 1)
        await clients[1].head()
        assert clients[1].status == 429
        assert (await clients[1].json())["error"]["code"] == "queue_full"
        await gateway.until(lambda: gateway.scheduler.status().by_tenant == {"b": 1})
        assert bodies.held_by("a") > 40 * KIB, "the request that the backend works on keeps its body"


async def test_a_body_that_is_being_sent_is_kept_and_the_newcomer_is_refused() -> None:
    fu = ScriptedUpstream(scripts={CHAT: []}, llama=LlamaLike(1))
    async with fu, running_gateway(settings_for(fu.url, **TWO_TENANTS)) as gateway:
        async with await gateway.client() as running:
            await running.send(request_bytes("POST", CHAT, key("a"), json=chat("x" * 60 * KIB)))
            await gateway.until(lambda: len(fu.generations) == 1)
            refused = await exchange(
                gateway.url, request_bytes("POST", CHAT, key("b"), json=chat("x" * 50 * KIB))
            )
            assert (refused.status, refused.header(b"x-slotgate-reason")) == (429, b"queue_full")
            assert gateway.scheduler.leases == 1
            assert gateway.parts.runtime.bodies.held_by("a") > 60 * KIB


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("size", [200 * KIB, 2 * KIB * KIB], ids=["one piece", "many pieces"])
async def test_a_request_counts_until_its_answer_is_read(
    size: int, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    with_small_send_buffers(monkeypatch)
    script: Script = [Write(answer(200, {"choices": [], "content": "x" * size})), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script}, llama=LlamaLike(4))
    given: dict[str, Any] = {
        "tenant": [tenant("a", max_concurrent=1)],
        "streaming": {"client_stall_timeout_s": 0.3},
    }
    async with fu, running_gateway(settings_for(fu.url, **given)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.send(request_bytes("POST", CHAT, key("a"), json=chat(stream=False)))
            await client.head()
            client.stop_reading()
            await gateway.until(lambda: gateway.idle and fu.generations)
            assert gateway.parts.runtime.concurrency.inside("a") == 1, "its slot is free, its place is not"
            assert (await ask(gateway.url, key("a"), stream=stream)).error["code"] == "tenant_concurrency"
            await gateway.until(lambda: gateway.parts.runtime.concurrency.inside("a") == 0)
        outcomes = {line["outcome"] for line in gateway.log.of("request")}
        assert outcomes == {"client_stalled", "error"}
        fu.scripts.clear()
        assert (await ask(gateway.url, key("a"), stream=stream)).status == 200
