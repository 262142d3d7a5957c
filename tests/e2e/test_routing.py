"""The choice between several backends of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import RawClient
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.notation import answer
from tests.support.script import Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

RunLlama = Callable[[RealLlama], RealLlama]
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]
}


def conversation(*said: str) -> dict[str, Any]:
    roles = ["user", "assistant"]
    return chat(
        stream=False,
        messages=[{"role": roles[number % 2], "content": text} for number, text in enumerate(said)],
    )


def both() -> tuple[ScriptedUpstream, ScriptedUpstream]:
    one, two = (ScriptedUpstream(scripts={CHAT: [Write(answer(200, ANSWER))]}) for _ in range(2))
    return one, two


async def say(gateway: Gateway, body: dict[str, Any], *headers: bytes) -> str:
    """Send a prompt, and return the backend that served it."""
    async with await gateway.client() as client:
        await client.post(CHAT, body, *headers)
        await client.body()
        assert client.status == 200
    return str(gateway.log.of("request")[-1]["backend"])


async def test_a_conversation_stays_with_its_backend_and_new_ones_go_to_the_least_busy_one() -> None:
    one, two = both()
    async with one, two, running_gateway(settings_for(one.url, two.url)) as gateway:
        homes = {}
        for name in ("ada", "bob", "eve", "kim"):
            homes[name] = await say(gateway, conversation(f"{name} " * 50))
        for name, home in homes.items():
            said = [f"{name} " * 50]
            for number in range(3):
                said += ["ok", f"turn {number}"]
                assert await say(gateway, conversation(*said)) == home


async def test_a_session_stays_where_it_is() -> None:
    one, two = both()
    async with one, two, running_gateway(settings_for(one.url, two.url)) as gateway:
        for header in (b"x-slotgate-session", b"x-session-id", b"x-claude-code-session-id"):
            session = header + b": " + header
            home = await say(gateway, conversation("first " + header.decode()), session)
            for number in range(4):
                assert await say(gateway, conversation(f"{number} {header.decode()}"), session) == home
        body = {**conversation("by the body"), "prompt_cache_key": "k"}
        home = await say(gateway, body)
        assert {await say(gateway, {**conversation(f"{n}"), "prompt_cache_key": "k"}) for n in range(4)} == {
            home
        }


async def test_real_llama_servers_find_their_prompts_again(run_llama: RunLlama, tiny_model: Path) -> None:
    """Eight conversations of five turns run on two backends. Nearly all of each prompt is in the cache."""
    llamas = [run_llama(RealLlama(tiny_model, slots=4, context=16384)) for _ in range(2)]
    urls = [llama.url for llama in llamas]
    async with running_gateway(settings_for(*urls)) as gateway, await gateway.client() as client:
        cached, prompt = await _turns(client)
    assert cached / prompt > 0.6, (cached, prompt)


async def _turns(client: RawClient) -> tuple[int, int]:
    cached = prompt = 0
    said = {name: [f"I am {name}. " * 20] for name in "abcdefgh"}
    for turn in range(5):
        for messages in said.values():
            body = {**conversation(*messages), "max_tokens": 4}
            await client.post(CHAT, body)
            got = await client.json()
            messages += [got["choices"][0]["message"]["content"], f"and then, {turn}?"]
            if turn:
                prompt += got["usage"]["prompt_tokens"]
                cached += got["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, prompt
