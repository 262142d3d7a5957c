"""The log of a gateway: one line for each request however it ends, none for a frame, and no floods."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.telemetry.log_limiter import MOST
from tests.support.answer import exchange, fetch
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.notation import DONE, END, STOP, USE, H, T, answer, chunked, error_body
from tests.support.script import Fin, Gate, Paced, Script, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = pytest.mark.anyio

TENANTS = [
    {"name": "team-a", "key": [{"name": "laptop", "hash": hash_key("sg-a")}]},
    {"name": "poor", "key_hashes": [hash_key("sg-poor")], "requests_per_minute": 1},
]
A = b"x-api-key: sg-a"
PROMPT = "a prompt that is nobody's business"
WHOLE: Script = stream(T("a"), T("b"), STOP, USE, DONE)


def lines(gateway: Gateway) -> list[dict[str, Any]]:
    return gateway.log.of("request") + gateway.log.of("refused")


def counted(entries: list[dict[str, Any]], kind: str) -> int:
    """Return the number of requests of this kind that were only counted in the log."""
    return sum(entry["left_out"][kind] for entry in entries if "left_out" in entry)


async def test_a_line_says_whose_request_it_was_where_it_went_and_how_long_everything_took() -> None:
    async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu:
        async with running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
            await ask(gateway.url, A, b"x-request-id: r-1")
            await gateway.until(lambda: lines(gateway))
            [line] = lines(gateway)
    times = [line.pop(name) for name in ("queue_ms", "ttft_ms", "total_ms")]
    assert times[0] <= times[1] <= times[2]
    assert line == {
        "event": "request",
        "log_level": "info",
        "id": "r-1",
        "method": "POST",
        "path": CHAT,
        "tenant": "team-a",
        "key": "laptop",
        "model": "m",
        "backend": "gpu0",
        "outcome": "ok",
        "status": 200,
        "stream": True,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 2,
    }


async def leaves(gateway: Gateway, *, when: Callable[[], object]) -> None:
    async with await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, A, json=chat(PROMPT)))
        await gateway.until(when)


async def leaving_in_prefill(gateway: Gateway, fu: ScriptedUpstream) -> None:
    await leaves(gateway, when=lambda: fu.generations)


WAYS: dict[str, tuple[Script, Callable[[Gateway, ScriptedUpstream], Awaitable[object]], str]] = {
    "a stream": (WHOLE, lambda gateway, _: ask(gateway.url, A), "ok"),
    "an answer": ([Write(answer(200, {"choices": []}))], lambda g, _: ask(g.url, A, stream=False), "ok"),
    "an unknown key": (WHOLE, lambda gateway, _: ask(gateway.url, b"x-api-key: no"), "error"),
    "an unknown path": (WHOLE, lambda gateway, _: fetch(gateway.url, "GET", "/nothing", A), "error"),
    "no JSON": (WHOLE, lambda g, _: fetch(g.url, "POST", CHAT, A, body=b"{"), "error"),
    "no HTTP": (WHOLE, lambda gateway, _: exchange(gateway.url, b"nonsense\r\n\r\n"), "refused"),
    "an error of the backend": (
        [Write(answer(400, error_body(400, PROMPT, "odd")))],
        lambda gateway, _: ask(gateway.url, A),
        "error",
    ),
    "cut off": ([Write(H + chunked(T(PROMPT))), Fin()], lambda gateway, _: ask(gateway.url, A), "error"),
    "left in prefill": ([Gate()], leaving_in_prefill, "client_gone"),
    "left in the stream": ([Write(H + chunked(T(PROMPT))), Stall()], leaving_in_prefill, "client_gone"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_request_has_one_line_however_it_ended_and_no_word_of_its_content(way: str) -> None:
    script, asked, outcome = WAYS[way]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu:
        async with running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
            await asked(gateway, fu)
            await gateway.until(lambda: lines(gateway))
        found = lines(gateway)
    assert [line.get("outcome", line["event"]) for line in found] == [outcome]
    assert "nobody's business" not in gateway.log.text


async def test_frames_are_not_logged() -> None:
    script: Script = [Write(H), Paced(float("inf"), 3000), Write(chunked(STOP, DONE) + END), Fin()]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu:
        async with running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
            before = len(gateway.log.events) + len(gateway.log.records)
            await ask(gateway.url, A)
            await gateway.until(lambda: lines(gateway))
            assert len(gateway.log.events) + len(gateway.log.records) - before == 1


@pytest.mark.slow
async def test_a_flood_of_clients_that_leave_is_some_lines_and_a_number() -> None:
    """Requests that end well have lines of their own all the same."""
    flood = MOST + 50
    fu = ScriptedUpstream(scripts={CHAT: lambda request: WHOLE if b'"ok"' in request.body else [Stall()]})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
        blocker = await gateway.client()
        await blocker.send(request_bytes("POST", CHAT, A, json=chat()))
        await gateway.until(lambda: fu.generations)
        for _ in range(flood // 50):
            clients = [await gateway.client() for _ in range(50)]
            for client in clients:
                await client.send(request_bytes("POST", CHAT, A, json=chat()))
            await gateway.until(lambda: gateway.scheduler.depth == 50)
            for client in clients:
                client.close()
            await gateway.until(lambda: gateway.scheduler.depth == 0)
        blocker.close()
        assert (await ask(gateway.url, A, stop="ok")).body.endswith(DONE)
        await gateway.until(lambda: any(line["outcome"] == "ok" for line in lines(gateway)))
    outcomes = [line["outcome"] for line in lines(gateway)]
    assert outcomes.count("ok") == 1
    assert MOST <= outcomes.count("client_gone") < flood
    assert outcomes.count("client_gone") + counted(gateway.log.events, "client_gone") == flood + 1


async def test_a_successful_request_always_has_its_log_line() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url)) as gateway:
        for _ in range(MOST + 20):
            await fetch(gateway.url, "GET", "/v1/models")
    assert len(lines(gateway)) == MOST + 20


async def test_a_flood_of_nonsense_is_some_lines_and_a_number() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url)) as gateway:
        for _ in range(MOST + 20):
            await exchange(gateway.url, b"nonsense\r\n\r\n")
    written = len(gateway.log.of("refused"))
    assert MOST <= written < MOST + 20
    assert written + counted(gateway.log.events, "invalid_request") == MOST + 20


@pytest.mark.slow
async def test_on_a_pipe_every_line_is_json_and_the_last_counts_are_logged_at_the_end(tmp_path: Path) -> None:
    async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu:
        async with served_gateway(tmp_path, backend_table(fu.url)) as served:
            await ask(served.url, b"x-request-id: r-1")
            for _ in range(MOST + 20):
                await fetch(served.url, "GET", "/nothing")
            await served.stop(signal.SIGTERM)
            entries = [orjson.loads(line) for line in served.log.read_bytes().split(b"\n") if line]
    assert all({"event", "level", "timestamp"} <= set(entry) for entry in entries)
    assert [entry["outcome"] for entry in entries if entry.get("id") == "r-1"] == ["ok"]
    written = sum(entry.get("code") == "unknown_path" for entry in entries)
    assert MOST <= written < MOST + 20
    assert written + counted(entries, "unknown_path") == MOST + 20


async def test_a_request_that_is_refused_for_its_limit_has_its_line() -> None:
    async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu:
        async with running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
            await asyncio.gather(*(ask(gateway.url, b"x-api-key: sg-poor") for _ in range(3)))
            await gateway.until(lambda: len(lines(gateway)) == 3)
    codes = sorted(str(line.get("code")) for line in lines(gateway))
    assert codes == ["None", "rate_limited", "rate_limited"]
    assert {line["tenant"] for line in lines(gateway)} == {"poor"}
