"""Limits per minute and per day over HTTP: refusals come early, name the limit, and cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.usage import open_ledger
from tests.support.answer import WholeResponse
from tests.support.client import read_stream, request_bytes
from tests.support.gateway import CHAT, ask, chat, running_gateway, settings_for
from tests.support.notation import END, STOP, USE, H, T, answer, chunked
from tests.support.script import Fin, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

KEY = b"authorization: Bearer sg-a"
WHOLE: Script = [Write(answer(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))]
STREAM: Script = [Write(H + chunked(T("a"), T("b"), STOP, USE, b"data: [DONE]\n\n") + END), Fin()]


def tenants(**limits: int) -> list[dict[str, Any]]:
    return [{"name": "a", "key_hashes": [hash_key("sg-a")], **limits}]


def header(got: WholeResponse, name: str) -> bytes | None:
    return got.header(name.encode())


async def test_a_request_too_many_is_429_with_the_limit_and_the_time() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants(requests_per_minute=2))) as gateway:
        answers = [await ask(gateway.url, KEY, stream=False) for _ in range(3)]
        assert [got.status for got in answers] == [200, 200, 429]
        assert len(fu.generations) == 2
    refused = answers[-1]
    assert (refused.error["code"], refused.error["type"]) == ("rate_limited", "rate_limit_error")
    assert "2 requests a minute" in refused.error["message"]
    assert 25 <= int(header(refused, "retry-after") or 0) <= 31
    assert [header(got, "x-ratelimit-remaining-requests") for got in answers] == [b"1", b"0", b"0"]
    assert {header(got, "x-ratelimit-limit-requests") for got in answers} == {b"2"}
    assert (header(answers[0], "x-ratelimit-reset-requests") or b"").endswith((b"s", b"ms"))
    assert header(answers[0], "x-ratelimit-limit-tokens") is None


async def test_tokens_are_corrected_by_the_count_of_the_backend() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    limits = {"tokens_per_minute": 600, "tokens_per_day": 1000}
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants(**limits))) as gateway:
        for _ in range(5):
            got = await ask(gateway.url, KEY, stream=False, max_tokens=500)
            assert got.status == 200, "each estimate alone would use up the minute"
        limiter = gateway.limiter
        assert limiter.used_today("a") == 5 * 5
    assert header(got, "x-ratelimit-limit-tokens") == b"600"


async def test_no_requested_number_of_tokens_resets_the_use() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants(tokens_per_day=1000))) as gateway:
        got = await ask(gateway.url, KEY, stream=False, max_tokens=1e308, n=2)
        assert got.status == 200, "nothing was used before"
        assert gateway.limiter.used_today("a") == 5


async def test_a_quota_that_is_used_up_says_do_not_retry() -> None:
    fu = ScriptedUpstream(scripts={CHAT: STREAM})
    async with fu, running_gateway(settings_for(fu.url, tenant=tenants(tokens_per_day=300))) as gateway:
        await read_stream(gateway.url, CHAT, chat(max_tokens=10), [KEY])
        long = "word " * 400
        got = await ask(gateway.url, KEY, messages=[{"role": "user", "content": long}], max_tokens=9)
        assert (got.status, got.error["code"]) == (429, "quota_exceeded")
        assert header(got, "x-should-retry") == b"false"
        assert 0 < int(header(got, "retry-after") or 0) <= 86_400
        assert gateway.limiter.used_today("a") == 5
        assert len(fu.generations) == 1


SLOT_ENDPOINTS = [endpoint for endpoint in ENDPOINTS if endpoint.takes_slot and not endpoint.multipart]
MEMBERS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "content": "hi",
    "query": "q",
    "documents": ["a"],
    "input_prefix": "a",
    "input_suffix": "b",
}


@pytest.mark.parametrize("endpoint", SLOT_ENDPOINTS, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("ending", ["queue full", "client gone", "unreachable"])
async def test_a_request_that_never_ran_costs_nothing_on_any_endpoint(endpoint: Any, ending: str) -> None:  # noqa: ANN401
    path = endpoint.paths[0]
    fu = ScriptedUpstream(scripts={path: [Stall()], CHAT: [Stall()]})
    fu.llama.total_slots = 1
    tenant = [
        *tenants(requests_per_minute=100, tokens_per_day=100_000),
        {"name": "b", "key_hashes": [hash_key("sg-b")]},
    ]
    queue = {"max_queue": 1, "max_queue_per_tenant": 1}
    async with fu, running_gateway(settings_for(fu.url, tenant=tenant, admission=queue)) as gateway:
        holder, other = await gateway.client(), await gateway.client()
        if ending == "unreachable":
            for backend in gateway.fleet.backends.values():
                backend.move_to("http://127.0.0.1:1")
        else:
            await holder.send(request_bytes("POST", CHAT, b"x-api-key: sg-b", json=chat(stream=False)))
            await fu.generation()
        if ending == "queue full":
            await other.send(request_bytes("POST", CHAT, b"x-api-key: sg-b", json=chat(stream=False)))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
        async with await gateway.client() as client:
            if ending == "client gone":
                await client.send(request_bytes("POST", path, KEY, json=MEMBERS))
                await gateway.until(lambda: gateway.scheduler.depth == 1)
            else:
                await client.request("POST", path, KEY, json=MEMBERS)
                assert client.status in (429, 502)
        live = gateway.in_flight
        await gateway.until(lambda: all(context.tenant.name != "a" for context in live.contexts))
        state = gateway.limiter.requests_of("a")
        assert state is not None
        assert (state.remaining, gateway.limiter.used_today("a")) == (100, 0)
        other.close()
        holder.close()


async def test_the_use_of_a_day_survives_a_restart(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu:
        store = {"store": f"sqlite:///{tmp_path}/usage.db"}
        settings = settings_for(fu.url, tenant=tenants(tokens_per_day=1000), usage=store)
        for before in (0, 10):
            async with (
                open_ledger(settings.usage) as usage,
                running_gateway(settings, usage=usage) as gateway,
            ):
                assert gateway.limiter.used_today("a") == before
                answers = [await ask(gateway.url, KEY, stream=False, max_tokens=1) for _ in range(2)]
                assert [got.status for got in answers] == [200, 200]
                assert gateway.limiter.used_today("a") == before + 10
