"""The books over real sockets. `test_books_table.py` has every endpoint and every ending."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import fetch
from tests.support.client import request_bytes
from tests.support.endpoints import MODEL, SAMPLES, WAYS, Way
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import H, answer, chunked
from tests.support.script import Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KEY = b"authorization: Bearer sg-a"
STREAMS = [way for way in WAYS if way.sample.events and way.path == way.endpoint.paths[0]]


@asynccontextmanager
async def gateway_for(fu: ScriptedUpstream, **limits: int) -> AsyncIterator[Gateway]:
    tenants = [{"name": "a", "key_hashes": [hash_key("sg-a")], **limits}]
    timeouts = {"first_byte_s": 5, "idle_s": 0.3}
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants, timeouts=timeouts)) as gateway:
        yield gateway


def upstream(way: Way, script: Script) -> ScriptedUpstream:
    return ScriptedUpstream(scripts={way.upstream: script}, llama=LlamaLike(4, model=MODEL))


async def test_messages_streams_that_are_left_use_up_the_day() -> None:
    [way] = [way for way in STREAMS if way.endpoint.name == "messages"]
    events = list(SAMPLES["messages"].events)
    first = next(index for index, event in enumerate(events) if b" one" in event)
    fu = upstream(way, [Write(H + chunked(*events[:first], *[events[first]] * 400)), Stall()])
    statuses = []
    async with gateway_for(fu, tokens_per_day=5000) as gateway:
        for _ in range(40):
            async with await gateway.client() as client:
                await client.send(way.request(KEY, stream=True))
                await client.head()
                statuses.append(client.status)
                if client.status != 200:
                    break
                await gateway.until(
                    lambda: any(a.progress().tokens >= 400 for a, _ in gateway.in_flight.answers)
                )
            await gateway.until(lambda: gateway.idle and not gateway.in_flight.contexts)
        assert gateway.limiter.used_today("a") >= 4600
    assert statuses[-1] == 429
    assert 10 <= len(statuses) <= 13


async def test_whole_answers_that_are_left_count_as_requests() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]})
    async with gateway_for(fu, requests_per_minute=2) as gateway:
        for number in range(2):
            async with await gateway.client() as client:
                await client.send(request_bytes("POST", CHAT, KEY, json=chat(stream=False)))
                await gateway.until(lambda: len(fu.generations) > number)  # noqa: B023
            await gateway.until(lambda: not gateway.in_flight.contexts)
        assert (await ask(gateway.url, KEY, stream=False)).error["code"] == "rate_limited"


async def test_requests_without_a_slot_are_limited_apart() -> None:
    whole: Script = [
        Write(answer(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))
    ]
    fu = ScriptedUpstream(scripts={"/tokenize": [Write(answer(200, {"tokens": [1]}))], CHAT: whole})
    async with gateway_for(fu, requests_per_minute=2) as gateway:
        bodies = [
            await fetch(gateway.url, "POST", "/tokenize", KEY, json={"content": "hi"}) for _ in range(5)
        ]
        assert [got.status for got in bodies] == [200, 200, 429, 429, 429]
        assert (await ask(gateway.url, KEY, stream=False)).status == 200


async def test_reservations_in_the_way_are_a_short_wait_and_no_used_up_day() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]}, llama=LlamaLike(8))
    async with gateway_for(fu, tokens_per_day=100_000) as gateway:
        clients = [await gateway.client() for _ in range(3)]
        for client in clients:
            await client.send(request_bytes("POST", CHAT, KEY, json=chat(max_tokens=32_000)))
        await gateway.until(lambda: len(fu.generations) == 3)
        refused = await ask(gateway.url, KEY, max_tokens=32_000)
        assert refused.error["code"] == "rate_limited"
        assert int(refused.header(b"retry-after") or 0) <= 5
        assert refused.header(b"x-should-retry") is None
        for client in clients:
            client.close()


async def test_choices_and_response_fields_are_counted() -> None:
    text = [{"index": n, "finish_reason": "length", "message": {"content": "one two"}} for n in range(3)]
    whole: Script = [
        Write(answer(200, {"choices": text, "usage": {"prompt_tokens": 9, "completion_tokens": 50}}))
    ]
    fields = {"content": "one", "timings": {"cache_n": 2, "prompt_n": 11, "predicted_n": 7}}
    fu = ScriptedUpstream(
        scripts={CHAT: whole, "/completion": [Write(answer(200, fields))]}, llama=LlamaLike(4)
    )
    async with gateway_for(fu, tokens_per_day=10_000) as gateway:
        assert (await ask(gateway.url, KEY, stream=False, n=3)).status == 200
        assert gateway.limiter.used_today("a") == 9 + 3 * 50
        body = {"prompt": "hi", "response_fields": ["content"]}
        got = await fetch(gateway.url, "POST", "/completion", KEY, json=body)
        assert got.json == {"content": "one"}
        assert gateway.limiter.used_today("a") == 9 + 3 * 50 + 13 + 7
