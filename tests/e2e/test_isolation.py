"""`isolate_cache = true`: on a real llama-server, no tenant can find out what another one asked.

A tenant could find out that a prompt has been asked before: its beginning is not processed again, and the
answer states how many of its tokens came from the cache. The canary is a long prompt that two tenants happen
to know.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import Settings, parse
from tests.support.answer import WholeResponse, fetch
from tests.support.client import read_stream, request_bytes
from tests.support.gateway import CHAT, Gateway, data_of, running_gateway
from tests.support.own import OPERATOR, SERVER, llama_command, own_backend

pytestmark = [pytest.mark.anyio, pytest.mark.real]

CANARY = "the quick brown canary sings of gold at night. " * 12
MESSAGES = {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 3}
ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: MESSAGES,
    "/v1/messages": MESSAGES,
    "/v1/completions": {"prompt": CANARY, "max_tokens": 3},
    "/completion": {"prompt": CANARY, "n_predict": 3},
    "/v1/responses": {"input": CANARY, "max_output_tokens": 3},
}
TEMPLATE = 25
PATIENCE_S = 30.0


def settings(model: Path, isolate: object, slots: int = 2) -> Settings:
    """Return settings. The tenant `a` is to be isolated."""
    tenants = [
        {"name": "a", "key_hashes": [hash_key("sg-a")], "isolate_cache": isolate},
        {"name": "b", "key_hashes": [hash_key("sg-b")]},
        {"name": "chooser", "key_hashes": [hash_key("sg-chooser")], "allow_id_slot": True},
    ]
    backend = own_backend("m", llama_command(model, slots=slots))
    data = {"server": SERVER, "tenant": tenants, "backend": [backend], "usage": {"store": "none"}}
    return parse(data, {})


def key_of(tenant: str) -> bytes:
    return b"authorization: Bearer sg-" + tenant.encode()


async def ask(gateway: Gateway, tenant: str, path: str = CHAT, **members: object) -> WholeResponse:
    answer = await fetch(gateway.url, "POST", path, key_of(tenant), json=ENDPOINTS[path] | members)
    assert answer.status == 200, answer
    return answer


def cached(answer: WholeResponse) -> int:
    """Return the prompt tokens that came from the cache.

    Those of the template are the same for all tenants.
    """
    usage = answer.json.get("usage", {})
    details = usage.get("prompt_tokens_details", usage)
    tokens: int = details.get("cached_tokens", details.get("cache_read_input_tokens", 0))
    return tokens


async def slots_of(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the slots as llama-server itself shows them."""
    answer = await gateway.fleet.backends["m"].ask("/slots")
    slots: list[dict[str, Any]] = orjson.loads(answer.content)
    return slots


def left_in(slots: list[dict[str, Any]]) -> list[int]:
    return [slot.get("n_prompt_tokens") or 0 for slot in slots if not slot["is_processing"]]


async def test_without_isolation_another_tenant_finds_the_canary(tiny_model: Path) -> None:
    """This shows that the other tests would notice if isolation did nothing."""
    async with running_gateway(settings(tiny_model, False, slots=1)) as gateway:
        await ask(gateway, "a")
        assert cached(await ask(gateway, "b")) > 50


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("slots", [1, 2])
async def test_scenario_116_an_isolated_tenant_leaves_nothing_for_another(
    tiny_model: Path, path: str, slots: int
) -> None:
    async with running_gateway(settings(tiny_model, True, slots)) as gateway:
        for _ in range(slots + 1):
            await ask(gateway, "a", path)
            assert cached(await ask(gateway, "b")) < TEMPLATE
            await ask(gateway, "b", messages=[{"role": "user", "content": "something else"}])
        await ask(gateway, "a", path)
        await gateway.until(lambda: gateway.fleet.backends["m"].pool.free == slots)
        assert 0 in left_in(await slots_of(gateway))


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
async def test_scenario_116_no_conversation_crosses_over_while_two_tenants_ask_at_once(
    tiny_model: Path, isolate: bool
) -> None:
    """The probability of a token depends on every word before it, so a stranger's words would change it."""
    canaries = {"a": "gold " * 40, "b": "black water " * 40}

    async def probability(gateway: Gateway, tenant: str) -> float:
        messages = [{"role": "system", "content": canaries[tenant]}, {"role": "user", "content": "go on"}]
        asked = {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "stream": True}
        frames = await read_stream(gateway.url, CHAT, asked, [key_of(tenant)], within=PATIENCE_S)
        choices = [choice for chunk in data_of(frames) for choice in chunk["choices"]]
        *_, last = (choice["logprobs"]["content"] for choice in choices if choice.get("logprobs"))
        return float(last[0]["logprob"])

    async with running_gateway(settings(tiny_model, isolate)) as gateway:
        alone = {tenant: await probability(gateway, tenant) for tenant in "ab"}
        assert abs(alone["a"] - alone["b"]) > 0.01, alone
        order = "ab" * 40 + "ba" * 20
        together = await asyncio.gather(*(probability(gateway, tenant) for tenant in order))
        assert together == pytest.approx([alone[tenant] for tenant in order], abs=0.001)


@pytest.mark.slow
async def test_an_isolated_stream_whose_client_leaves_leaves_nothing(tiny_model: Path) -> None:
    async with running_gateway(settings(tiny_model, True, slots=1)) as gateway:
        body = MESSAGES | {"stream": True, "max_tokens": 100_000}
        async with await gateway.client() as client:
            await client.send(request_bytes("POST", CHAT, key_of("a"), json=body))
            await client.head(PATIENCE_S)
            await anext(client.frames(PATIENCE_S))
        assert cached(await ask(gateway, "b")) < TEMPLATE


@pytest.mark.parametrize(("path", "width"), [(CHAT, 1), ("/v1/messages", 2)])
async def test_a_request_that_cannot_name_its_slot_gets_all_slots(
    tiny_model: Path, path: str, width: int
) -> None:
    """Otherwise llama-server might put it into a slot that another lease holds."""
    async with running_gateway(settings(tiny_model, True, slots=2)) as gateway:
        body = MESSAGES | {"stream": True, "max_tokens": 100_000}
        async with await gateway.client() as client:
            await client.send(request_bytes("POST", path, key_of("b"), json=body))
            await client.head(PATIENCE_S)
            assert gateway.fleet.backends["m"].pool.leased == width


async def test_an_isolated_answer_of_several_slots_leaves_nothing(tiny_model: Path) -> None:
    async with running_gateway(settings(tiny_model, True, slots=2)) as gateway:
        await ask(gateway, "a", n=2)
        await gateway.until(lambda: gateway.fleet.backends["m"].pool.free == 2)
        assert left_in(await slots_of(gateway)) == [0, 0]


async def test_other_tenants_keep_their_prompts_in_their_own_slots(tiny_model: Path) -> None:
    """Each conversation is sent to the slot that holds it."""
    async with running_gateway(settings(tiny_model, True, slots=2)) as gateway:
        other: dict[str, Any] = {
            "messages": [{"role": "user", "content": "all about trains and boats and planes " * 12}]
        }
        await ask(gateway, "b", **other)
        for _ in range(2):
            await ask(gateway, "a")
            await gateway.until(lambda: gateway.fleet.backends["m"].pool.free == 2)
        assert cached(await ask(gateway, "b", **other)) > 50


@pytest.mark.parametrize(("tenant", "used"), [("chooser", 1), ("b", 0)])
async def test_the_slot_that_a_client_asks_for_is_used_if_it_may_ask(
    tiny_model: Path, tenant: str, used: int
) -> None:
    async with running_gateway(settings(tiny_model, True, slots=2)) as gateway:
        await ask(gateway, tenant, id_slot=1)
        left = left_in(await slots_of(gateway))
        assert [number for number, tokens in enumerate(left) if tokens] == [used]


@pytest.mark.slow
async def test_no_request_waits_inside_llama_server_while_all_tenants_ask_at_once(tiny_model: Path) -> None:
    """Each request runs in the slot of its lease, so none has to wait for another one in the same slot."""
    async with running_gateway(settings(tiny_model, True, slots=3)) as gateway:
        async with AsyncExitStack() as stack:
            body = MESSAGES | {"stream": True, "max_tokens": 100_000}
            clients = [await stack.enter_async_context(await gateway.client()) for _ in range(3)]
            for client, tenant in zip(clients, "abb", strict=True):
                await client.send(request_bytes("POST", CHAT, key_of(tenant), json=body))
            for client in clients:
                await client.head(PATIENCE_S)
                await anext(client.frames(PATIENCE_S))
            assert [slot["is_processing"] for slot in await slots_of(gateway)] == [True] * 3
        await gateway.until(lambda: gateway.fleet.backends["m"].pool.free == 3)
        assert 0 in left_in(await slots_of(gateway))


@pytest.mark.slow
async def test_a_slot_that_cannot_be_erased_stays_out(tiny_model: Path) -> None:
    """The llama-server of this test answers as one that cannot erase slots."""
    without = settings(tiny_model, True, slots=1)
    async with running_gateway(without) as gateway:
        backend = gateway.fleet.backends["m"]
        real, asked = backend.ask, []

        async def unable(path: str, method: str = "GET") -> Any:  # noqa: ANN401
            if method == "POST":
                asked.append(path)
                return await real("/nowhere", method)
            return await real(path, method)

        backend.ask = unable  # type: ignore[method-assign]
        await ask(gateway, "a")
        await gateway.until(lambda: asked)
        assert (asked[0], backend.pool.free) == ("/slots/0?action=erase", 0)
        backend.ask = real  # type: ignore[method-assign]
        assert cached(await ask(gateway, "b")) < TEMPLATE


async def test_a_reload_is_judged_by_the_processes_that_run_and_not_by_those_it_asks_for(
    tiny_model: Path,
) -> None:
    """The file exchanges the models of two backends, while the processes go on serving their old models."""

    def written(own: str, other: str) -> Settings:
        keys = {"key_hashes": [hash_key("sg-a")]}
        slots = {"m": 1, "n": 2}
        backends = [
            own_backend(name, llama_command(tiny_model, slots=slots[model])) | {"models": [model]}
            for name, model in (("first", own), ("second", other))
        ]
        tenants = [{"name": "a", **keys, "isolate_cache": True, "models": [own]}]
        return parse(
            {"server": SERVER, "tenant": tenants, "backend": backends, "usage": {"store": "none"}}, {}
        )

    async with running_gateway(written("m", "n"), load=lambda: written("n", "m")) as gateway:
        answer = await fetch(gateway.url, "POST", "/admin/reload", OPERATOR)
        message = answer.json["error"]["message"]
        assert (answer.status, "needs a new process of second" in message) == (400, True), message


async def test_a_tenant_cannot_be_isolated_by_reload_on_processes_that_were_not_started_for_it(
    tiny_model: Path,
) -> None:
    before = settings(tiny_model, False)
    async with running_gateway(before, load=lambda: settings(tiny_model, True)) as gateway:
        answer = await fetch(gateway.url, "POST", "/admin/reload", OPERATOR)
        assert (answer.status, "needs a new process of m" in answer.json["error"]["message"]) == (400, True)
        assert not gateway.fleet.backends["m"].pool.numbered
