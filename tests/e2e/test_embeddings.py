"""Arrays of inputs: one request whose inputs use the slots that are free, one slot each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import RawClient, request_bytes
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer
from tests.support.script import Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

PATH = "/v1/embeddings"
ANSWER = {
    "model": "/srv/models/tiny.gguf",
    "object": "list",
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
    "data": [{"embedding": [0.25, -1.5], "index": 0, "object": "embedding"}],
}


async def embed(url: str, given: object) -> tuple[int, dict[str, Any]]:
    async with await RawClient.connect(url) as client:
        await client.request("POST", PATH, json={"input": given}, within=20)
        return client.status, await client.json()


async def test_the_answer_passes_under_the_public_name_and_gets_no_id() -> None:
    fu = ScriptedUpstream(scripts={PATH: [Write(answer(200, ANSWER))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        status, got = await embed(gateway.url, "hello")
    assert status == 200
    assert got == {**ANSWER, "model": "m"}


@pytest.mark.parametrize(
    ("given", "width"), [("a", 1), ([1, 2, 3], 1), (["a", "b", "c"], 3), ([[1], [2]], 2), (["x"] * 400, 4)]
)
async def test_a_request_holds_as_many_slots_as_it_uses_and_no_more_than_there_are(
    given: object, width: int
) -> None:
    gate = Gate()
    script: Script = [gate, Write(answer(200, ANSWER))]
    fu = ScriptedUpstream(lambda _: script, llama=LlamaLike(4))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        asking = asyncio.create_task(embed(gateway.url, given))
        await fu.generation()
        assert gateway.fleet.backends["gpu0"].pool.leased == width
        gate.event.set()
        assert (await asking)[0] == 200
        assert gateway.fleet.backends["gpu0"].pool.free == 4
    assert fu.llama.deferred == 0


async def test_an_array_uses_a_free_slot_while_another_one_is_busy() -> None:
    gate = Gate()
    held: Script = [gate, Write(answer(200, {"choices": []}))]
    fu = ScriptedUpstream(lambda request: held if request.path == CHAT else None, llama=LlamaLike(2))
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as busy:
        await busy.send(request_bytes("POST", CHAT, json=chat(stream=False)))
        await fu.generation()
        assert (await embed(gateway.url, ["a", "b", "c"]))[0] == 200
        assert len(fu.generations) == 4
        assert not gate.event.is_set()
        gate.event.set()
    assert fu.llama.deferred == 0


async def test_every_slot_of_an_array_whose_client_left_is_verified() -> None:
    fu = ScriptedUpstream(scripts={PATH: [Stall()]}, llama=LlamaLike(4))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        fu.llama.foreign = 3
        async with await gateway.client() as client:
            await client.send(request_bytes("POST", PATH, json={"input": ["a", "b", "c"]}))
            await fu.generation()
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: len(pool.quarantine) == 3)
        assert pool.free == 1
        fu.llama.foreign = 0
        await gateway.until(lambda: pool.free == 4)


@pytest.mark.parametrize("given", [None, "", [], 5, [""], [[]], ["a", None], [True], {"text": "a"}])
async def test_an_input_that_is_none_is_refused_and_not_forwarded(given: object) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        status, got = await embed(gateway.url, given)
        assert (status, got["error"]["param"]) == (400, "input")
        assert fu.generations == []


async def test_a_real_llama_server_with_two_slots_embeds_ten_inputs(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    args = ("--embeddings", "--pooling", "mean")
    llama = run_llama(RealLlama(tiny_model, slots=2, context=2048, args=args))
    given = [f"text number {number}" for number in range(10)]
    async with running_gateway(settings_for(llama.url)) as gateway:
        status, through = await embed(gateway.url, given)
    _, direct = await embed(llama.url, given)
    assert status == 200
    assert [entry["index"] for entry in through["data"]] == list(range(10))
    for ours, theirs in zip(through["data"], direct["data"], strict=True):
        assert ours["embedding"] == pytest.approx(theirs["embedding"], rel=1e-3, abs=1e-4)
    assert through["usage"] == direct["usage"]
    assert through["model"] == "m"
