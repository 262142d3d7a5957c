"""Habits of llama-server that matter to gateways.

Each test runs against the scripted server, and against the real program with a tiny model and prompts that
take seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotgate.gateway.testing.fake import FakeServer, scene_of
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.fixtures import need_the_wheel
from tests.support.llama import RealLlama
from tests.support.notation import DONE

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.real]

CHAT = "/v1/chat/completions"
PROMPT_S = 8.0
"""The least time that the long prompt takes."""
TRIES = 3
LONG = {"messages": [{"role": "user", "content": "word " * 4200}], "max_tokens": 2, "stream": True}
ENDLESS = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100000, "stream": True}
SHORT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}

Start = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture(params=["fake", "real"])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a server with this number of slots, and yields its URL."""
    if request.param == "fake":
        return fake
    need_the_wheel()
    model: Path = request.getfixturevalue("tiny_model")

    @asynccontextmanager
    async def real(slots: int = 1, *, unified: bool = False, n_ctx: int = 32768) -> AsyncIterator[str]:
        """Run the real program. Small batches make prompts slow; it checks its clients between batches."""
        shared = ("--kv-unified",) if unified else ()
        context = n_ctx if unified else n_ctx * slots
        args = ("-b", "8", "-ub", "8", *shared) if n_ctx > 1024 else shared
        with RealLlama(model, slots=slots, context=context, args=args) as llama:
            yield llama.url

    return real


@asynccontextmanager
async def fake(slots: int = 1, *, unified: bool = False, n_ctx: int = 32768) -> AsyncIterator[str]:
    machine = {"slots": slots, "n_ctx": n_ctx, "kv_unified": unified}
    pace = {"prompt_tokens_per_s": 1000, "tokens_per_s": 400}
    async with FakeServer(scene_of({"server": machine, "default": pace})) as server:
        yield server.url


async def slots_busy(url: str) -> int:
    async with await RawClient.connect(url) as client:
        await client.request("GET", "/slots")
        return sum(slot["is_processing"] for slot in orjson.loads(await client.body()))


async def busy_soon(url: str, count: int, within: float = 5.0) -> None:
    """Wait until this number of slots is busy, polling twenty times a second."""
    async with asyncio.timeout(within):
        while await slots_busy(url) != count:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def asked(url: str, body: dict[str, Any]) -> AsyncIterator[RawClient]:
    async with await RawClient.connect(url) as client:
        await client.send(request_bytes("POST", CHAT, json=body))
        yield client


async def test_the_head_of_a_stream_comes_before_the_prompt_is_read(start: Start) -> None:
    async with start() as url, asked(url, LONG) as client:
        assert (await client.head(within=2)).get(b"content-type") == b"text/event-stream"
        with pytest.raises(TimeoutError):
            await anext(client.pieces(within=0.3))


async def test_a_request_without_a_free_slot_gets_no_byte_until_one_is_free(start: Start) -> None:
    async with start() as url, asked(url, ENDLESS) as running:
        await running.head()
        async with asked(url, SHORT) as deferred:
            with pytest.raises(TimeoutError):
                await deferred.head(within=1)
            running.close()
            assert (await deferred.head(within=5)).start_line == b"HTTP/1.1 200 OK"


async def test_the_connection_is_closed_behind_a_stream_although_it_says_keep_alive(start: Start) -> None:
    async with start() as url, asked(url, {**SHORT, "stream": True}) as client:
        head = await client.head()
        assert (await client.body()).endswith(DONE)
        assert head.get(b"keep-alive") == b"timeout=5, max=100"
        assert await client.eof(within=1)


async def test_the_connection_of_a_buffered_answer_can_be_used_again(start: Start) -> None:
    async with start() as url, asked(url, SHORT) as client:
        await client.head()
        await client.body()
        await client.post(CHAT, SHORT)
        assert client.status == 200


async def test_a_client_that_leaves_while_tokens_come_frees_its_slot_at_once(start: Start) -> None:
    async with start() as url:
        async with asked(url, ENDLESS) as client:
            await client.head()
            await anext(client.pieces())
        await busy_soon(url, 0)


async def test_a_client_that_leaves_during_its_prompt_is_noticed_after_a_quiet_second(
    start: Start,
) -> None:
    async with start() as url:
        async with asked(url, LONG) as client:
            await client.head()
            assert await slots_busy(url) == 1
        left = time.perf_counter()
        await asyncio.sleep(2.5)  # no polls, so that the server is quiet
        assert await slots_busy(url) == 0
        assert time.perf_counter() - left < PROMPT_S


async def test_polling_slots_keeps_abandoned_work_alive(start: Start) -> None:
    """Retried, because on a busy machine the server may be quiet for a second by itself."""
    kept = False
    for _ in range(TRIES):
        async with start() as url:
            async with asked(url, LONG) as client:
                await client.head()
            kept = await _busy_throughout(url, 2.0)
        if kept:
            break
    assert kept


async def _busy_throughout(url: str, seconds: float) -> bool:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if await slots_busy(url) != 1:
            return False
        await asyncio.sleep(0.1)
    return True


async def test_polling_health_and_properties_does_not_keep_abandoned_work_alive(start: Start) -> None:
    async with start() as url:
        async with asked(url, LONG) as client:
            await client.head()
        until = time.perf_counter() + 2.5
        while time.perf_counter() < until:
            for path in ("/health", "/props"):
                async with await RawClient.connect(url) as other:
                    assert (await other.request("GET", path)).start_line == b"HTTP/1.1 200 OK"
            await asyncio.sleep(0.2)
        assert await slots_busy(url) == 0


async def test_a_half_close_counts_as_a_close(start: Start) -> None:
    async with start() as url, asked(url, ENDLESS) as client:
        await client.head()
        await anext(client.pieces())
        client.half_close()
        await busy_soon(url, 0)


async def test_pings_come_while_the_prompt_is_read(start: Start) -> None:
    async with start() as url, asked(url, {**LONG, "sse_ping_interval": 1}) as client:
        await client.head()
        assert await anext(client.pieces(within=3)) == b":\n\n"


async def test_pings_can_be_switched_off(start: Start) -> None:
    async with start() as url, asked(url, {**LONG, "sse_ping_interval": -1}) as client:
        await client.head()
        with pytest.raises(TimeoutError):
            await anext(client.pieces(within=2.2))


async def test_two_choices_take_two_slots(start: Start) -> None:
    async with start(3) as url, asked(url, {**ENDLESS, "n": 2}) as client:
        await client.head()
        await busy_soon(url, 2)


async def test_more_prompts_than_slots_are_answered(start: Start) -> None:
    async with start(2) as url:
        frames = await read_stream(
            url, "/v1/completions", {"prompt": ["a", "b", "c", "d"], "max_tokens": 1, "stream": True}
        )
        said = [orjson.loads(frame.data[6:]) for frame in frames if frame.data.startswith(b"data: {")]
        ended = {chunk["choices"][0]["index"] for chunk in said if chunk["choices"][0]["finish_reason"]}
        assert ended == {0, 1, 2, 3}


async def test_a_request_for_a_slot_waits_for_it_even_if_another_is_free(start: Start) -> None:
    async with start(2) as url, asked(url, {**ENDLESS, "id_slot": 0}) as client:
        await client.head()
        async with asked(url, {**SHORT, "id_slot": 0}) as deferred:
            with pytest.raises(TimeoutError):
                await deferred.head(within=1)


async def test_a_full_unified_cache_ends_every_stream_with_an_error_and_a_clean_end(start: Start) -> None:
    async with (
        start(2, unified=True, n_ctx=512) as url,
        asked(url, ENDLESS) as one,
        asked(url, ENDLESS) as two,
    ):
        for client in (one, two):
            await client.head()
        for content in await asyncio.gather(one.body(20), two.body(20)):
            last = content.rstrip(b"\n").rpartition(b"\n\n")[2]
            assert b"[DONE]" not in content
            assert orjson.loads(last.removeprefix(b"data: "))["error"] == {
                "code": 500,
                "message": "Context size has been exceeded.",
                "type": "server_error",
            }
        assert one.clean_end
        assert two.clean_end
        await busy_soon(url, 0)
