"""`GET /admin/events` over real sockets: its content while requests run, and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.e2e.test_reload import Configuration
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.notation import H, T, chunked
from tests.support.script import Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import Served, backend_table, served_gateway

pytestmark = pytest.mark.anyio

MAX_SLOTS = 4096
"""The most slots that the gateway believes a backend to have."""
BACKENDS = 5
OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
TENANTS = [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in ("a", "b")]
A, B = b"x-api-key: sg-a", b"x-api-key: sg-b"


async def events(client: RawClient) -> AsyncIterator[dict[str, Any]]:
    async for frame in client.frames():
        yield orjson.loads(frame.data[6:])


async def open_events(gateway: Gateway, **options: int) -> RawClient:
    client = await gateway.client(**options)
    await client.request("GET", "/admin/events", OPERATOR)
    assert client.status == 200, await client.body()
    return client


async def test_scenario_062_the_headers_tell_proxies_not_to_buffer_events() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        client = await open_events(gateway)
        assert client.response is not None
        assert client.response.get(b"content-type") == b"text/event-stream; charset=utf-8"
        assert client.response.get(b"cache-control") == b"no-cache"
        assert client.response.get(b"x-accel-buffering") == b"no"
        client.close()


async def test_the_answer_to_head_ends() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        async with await gateway.client() as client:
            await client.send(request_bytes("HEAD", "/admin/events", OPERATOR, b"connection: close"))
            await client.head()
            assert client.status == 200
            assert await client.eof()


@pytest.mark.slow
async def test_events_show_slots_queue_and_ended_requests_as_they_change() -> None:
    gate = Gate()
    script: Script = [Write(H), gate, Write(chunked(T("a"))), Stall()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        viewer = await open_events(gateway)
        seen = events(viewer)
        first = await anext(seen)
        assert [cell["state"] for cell in first["backends"][0]["cells"]] == ["idle"]
        runs, waits = await gateway.client(), await gateway.client()
        await runs.send(request_bytes("POST", CHAT, A, b"x-request-id: r1", json=chat()))
        await gateway.until(lambda: gateway.scheduler.leases == 1)
        await waits.send(request_bytes("POST", CHAT, B, b"x-request-id: r2", json=chat()))
        shown = await until(seen, lambda event: event["queue"]["depth"] == 1)
        [cell] = shown["backends"][0]["cells"]
        assert (cell["state"], cell["tenant"], cell["request"]) == ("prefill", "a", "r1")
        assert shown["queue"]["by_tenant"] == {"b": 1}
        assert [(entry["id"], entry["outcome"]) for entry in shown["live"]] == [
            ("r2", "queued"),
            ("r1", "running"),
        ]
        gate.event.set()
        shown = await until(seen, lambda event: event["backends"][0]["cells"][0]["state"] == "generating")
        assert shown["backends"][0]["cells"][0]["tokens"] == 1
        assert shown["live"][1]["ttft_ms"] > 0
        waits.close()
        runs.close()
        shown = await until(seen, lambda event: any(entry["id"] == "r1" for entry in event["ended"]))
        [entry] = [entry for entry in shown["ended"] if entry["id"] == "r1"]
        assert (entry["tenant"], entry["outcome"]) == ("a", "client_gone")
        viewer.close()


async def until(seen: AsyncIterator[dict[str, Any]], condition: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the first event for which the condition holds."""
    async for event in seen:
        if condition(event):
            return event
    raise AssertionError("the stream has ended")


@asynccontextmanager
async def many_slots() -> AsyncIterator[list[str]]:
    """The URLs of backends with so many slots that one frame of the events fills socket buffers."""
    async with AsyncExitStack() as running:
        urls = []
        for _ in range(BACKENDS):
            upstream = await running.enter_async_context(ScriptedUpstream())
            upstream.llama.total_slots = MAX_SLOTS
            urls.append(upstream.url)
        yield urls


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_disconnected_and_delays_no_other() -> None:
    limit = {"client_stall_timeout_s": 0.5}
    async with (
        many_slots() as urls,
        running_gateway(settings_for(*urls, server=SERVER, streaming=limit)) as gateway,
    ):
        stalled, other = await open_events(gateway, receive_buffer=4096), await open_events(gateway)
        stalled.stop_reading()
        seen = events(other)
        await until(seen, lambda event: event["full"])
        told = 0
        while "client_stalled" not in gateway.log.text:
            event = await anext(seen)
            assert not event["full"], "a client that reads must miss no snapshot"
            told += 1
            assert told < 40, "the stalled client must be disconnected"
        stalled.close()
        other.close()


async def test_the_stream_ends_with_the_key_that_opened_it() -> None:
    fu = ScriptedUpstream()
    async with fu:
        file = Configuration(settings_for(fu.url, server=SERVER))
        async with running_gateway(settings_for(fu.url, server=SERVER), load=file.load) as gateway:
            async with await open_events(gateway) as viewer:
                seen = events(viewer)
                await anext(seen)
                another = {"port": 0, "operator_key_hashes": [hash_key("sg-another")]}
                file.settings = settings_for(fu.url, server=another)
                await gateway.app.reload()
                for _ in range(2):
                    if await anext(seen, None) is None:
                        break
                assert viewer.clean_end, "the stream goes on"


@pytest.mark.slow
async def test_event_streams_do_not_delay_shutdown(tmp_path: Path) -> None:
    server = f'[server]\nshutdown_grace_s = 30\noperator_key_hashes = ["{hash_key("sg-operator")}"]\n'
    async with many_slots() as urls:
        tables = [backend_table(url, name=f"gpu{number}") for number, url in enumerate(urls)]
        async with served_gateway(tmp_path, server + "".join(tables)) as served:
            await stopped_beside_event_streams(served)


async def stopped_beside_event_streams(served: Served) -> None:
    reads, stalled = await served.client(), await served.client(receive_buffer=4096)
    for client in (reads, stalled):
        await client.request("GET", "/admin/events", OPERATOR)
    stalled.stop_reading()
    seen = reads.frames()
    for _ in range(4):  # after that the stalled client's buffers are full
        await anext(seen)
    assert await served.stop(within=5.0) == 0
    assert [frame async for frame in seen][1:] == []
    assert reads.clean_end
    assert served.complaints() == []
    stalled.close()
    reads.close()
