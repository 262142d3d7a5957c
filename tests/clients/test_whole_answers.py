"""Requests without a stream through the official clients: answers, vectors, counts and lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import DefaultAsyncHttpxClient

from tests.clients import anthropic_python, langchain_python, openai_python
from tests.clients.driven import PARAMETERS, TOOL, ClientRequest
from tests.support.fixtures import RunLlama
from tests.support.gateway import Gateway, running_gateway, settings_for
from tests.support.llama import RealLlama

pytestmark = pytest.mark.anyio

COUNT = 5


@asynccontextmanager
async def gateway_before(llama: RealLlama) -> AsyncIterator[Gateway]:
    async with running_gateway(settings_for(llama.url)) as gateway:
        yield gateway
        await gateway.until(lambda: gateway.fleet.backends["gpu0"].pool.free == llama.slots)


async def test_openai_chat(tiny_llama: RealLlama) -> None:
    async with (
        gateway_before(tiny_llama) as gateway,
        openai_python.async_client(ClientRequest(gateway)) as client,
    ):
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=COUNT
        )
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "m"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == COUNT


async def test_openai_completions(tiny_llama: RealLlama) -> None:
    async with (
        gateway_before(tiny_llama) as gateway,
        openai_python.async_client(ClientRequest(gateway)) as client,
    ):
        answer = await client.completions.create(model="m", prompt=["hi", "ho"], max_tokens=COUNT)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.text for choice in answer.choices)


async def test_openai_responses(tiny_llama: RealLlama) -> None:
    async with (
        gateway_before(tiny_llama) as gateway,
        openai_python.async_client(ClientRequest(gateway)) as client,
    ):
        answer = await client.responses.create(model="m", input="hi", max_output_tokens=COUNT)
    assert answer.model == "m"
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == COUNT


async def test_openai_models(tiny_llama: RealLlama) -> None:
    async with (
        gateway_before(tiny_llama) as gateway,
        openai_python.async_client(ClientRequest(gateway)) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_openai_embeddings(encoding: str, run_llama: RunLlama, tiny_model: Path) -> None:
    """The client asks for base64 by default."""
    llama = run_llama(RealLlama(tiny_model, args=("--embeddings", "--pooling", "mean")))
    async with gateway_before(llama) as gateway, openai_python.async_client(ClientRequest(gateway)) as client:
        given = {"encoding_format": encoding} if encoding == "float" else {}
        answer = await client.embeddings.create(model="m", input=["hi", "other words"], extra_body=given)
    assert [vector.index for vector in answer.data] == [0, 1]
    first, second = (vector.embedding for vector in answer.data)
    assert len(first) == len(second) == 32
    assert all(isinstance(value, float) for value in first)
    assert first != second


async def test_anthropic_messages(tiny_llama: RealLlama) -> None:
    async with (
        gateway_before(tiny_llama) as gateway,
        anthropic_python.async_client(ClientRequest(gateway)) as client,
    ):
        answer = await client.messages.create(
            model="m", max_tokens=COUNT, messages=[{"role": "user", "content": "hi"}]
        )
    assert answer.id.startswith("msg_")
    assert answer.model == "m"
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == COUNT
    assert [block.type for block in answer.content] == ["text"]
    assert answer._request_id


async def test_anthropic_counts_the_tokens_that_a_message_then_has(tiny_llama: RealLlama) -> None:
    tools = [{"name": TOOL, "input_schema": PARAMETERS}]
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "some word"}],
        "tools": tools,
    }
    async with (
        gateway_before(tiny_llama) as gateway,
        anthropic_python.async_client(ClientRequest(gateway)) as client,
    ):
        counted = await client.messages.count_tokens(**asked)
        answer = await client.messages.create(max_tokens=COUNT, **asked)
    cached = answer.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == answer.usage.input_tokens + cached


async def test_langchain(tiny_llama: RealLlama) -> None:
    async with gateway_before(tiny_llama) as gateway, DefaultAsyncHttpxClient(trust_env=False) as http:
        chat = langchain_python.model(ClientRequest(gateway, max_tokens=COUNT), http)
        answer = await chat.ainvoke("hi")
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == COUNT
    assert answer.response_metadata["model_name"] == "m"
