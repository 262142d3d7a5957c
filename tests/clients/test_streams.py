"""Streams of a real llama-server through every client: the user reads the model's text."""

from __future__ import annotations

import orjson
import pytest

from tests.clients.driven import ClientRequest, DrivenClient
from tests.clients.every import every_client, every_client_with_tools
from tests.clients.scenes import CALL, tool_events
from tests.clients.tap import look_of_keepalives, tapped
from tests.support.client import RawClient
from tests.support.gateway import CHAT, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.script import stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

LONG = " ".join(["word"] * 500)
"""A prompt of about 3,500 tokens."""
COUNT = 12


async def said_by(llama: RealLlama, prompt: str, path: str) -> str:
    """Return the model's answer without gateway and client."""
    if path == "/v1/completions":
        body: dict[str, object] = {"prompt": prompt}
    else:
        path, body = CHAT, {"messages": [{"role": "user", "content": prompt}]}
    async with await RawClient.connect(llama.url) as client:
        await client.post(path, {**body, "max_tokens": COUNT, "temperature": 0})
        [choice] = orjson.loads(await client.body(within=30))["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@every_client
async def test_the_user_reads_what_the_model_says(client: DrivenClient, cold_llama: RealLlama) -> None:
    expected = await said_by(cold_llama, "hi", client.path)
    async with running_gateway(settings_for(cold_llama.url)) as gateway:
        report = await client.run(ClientRequest(gateway, max_tokens=COUNT, headers={"x-request-id": "req-1"}))
    assert report.failure is None
    assert report.text == expected
    assert len(report.pieces) > 1, "it came in pieces"
    assert report.tokens == COUNT
    assert report.finish in ("length", "max_tokens", "completed"), "as the protocol says it"
    assert report.request_id in (None, "req-1")


@every_client
async def test_keepalives_of_a_long_prompt_change_nothing(
    client: DrivenClient, cold_llama: RealLlama
) -> None:
    expected = await said_by(cold_llama, LONG, client.path)
    streaming = {"keepalive_interval_s": 0.01, "keepalive": "chunk"}
    settings = settings_for(cold_llama.url, streaming=streaming)
    async with running_gateway(settings) as gateway, tapped(gateway.url) as tap:
        report = await client.run(ClientRequest(gateway, url=tap.url, prompt=LONG, max_tokens=COUNT))
    assert look_of_keepalives(client.path, "chunk") in tap.seen
    assert report.failure is None
    assert report.text == expected
    assert report.tokens == COUNT


@every_client_with_tools
async def test_a_tool_call_is_assembled(client: DrivenClient) -> None:
    """Reasoning before the call does not disturb the clients."""
    fu = ScriptedUpstream(scripts={client.path: stream(*tool_events(client.path))})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        report = await client.run(ClientRequest(gateway, tools=True, max_tokens=None))
    assert report.failure is None
    assert report.call == CALL
    assert report.text == ""
    assert report.finish in ("tool_calls", "tool_use", "completed")
