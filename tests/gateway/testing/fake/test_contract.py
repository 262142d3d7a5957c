"""The scripted llama-server answers in the shape of the real program, on every path and for errors.

Each request goes to both, and `contract` compares the answers. Only the text may differ.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.testing.fake import FakeServer, scene_of
from tests.gateway.testing.fake.contract import contract_of
from tests.support.chain_model import TOOL_TEMPLATE, write_chain_model
from tests.support.fixtures import RunLlama, need_the_wheel
from tests.support.llama import RealLlama
from tests.support.tiny_model import THINKING_TEMPLATE

pytestmark = [pytest.mark.anyio, pytest.mark.real]

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hi there"}]
LONG = "word " * 7000
TOOL: Json = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SPOKEN: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}),
    "chat, other path": ("/chat/completions", {"messages": MESSAGES, "max_tokens": 3}),
    "chat, one token": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
    "chat, two choices": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "n": 2}),
    "chat, usage": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 3, "stream_options": {"include_usage": True}},
    ),
    "chat, timings": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 3, "timings_per_token": True},
    ),
    "chat, logprobs": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 2, "logprobs": True, "top_logprobs": 2},
    ),
    "chat, tools": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "tools": [TOOL]}),
    "chat, parts": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 2},
    ),
    "text": ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    "text, several": ("/v1/completions", {"prompt": ["hi", "ho"], "max_tokens": 2}),
    "text, tokens": ("/v1/completions", {"prompt": [300, 301], "max_tokens": 2}),
    "text, logprobs": ("/v1/completions", {"prompt": "hi", "max_tokens": 2, "logprobs": 2}),
    "native": ("/completion", {"prompt": "hi", "n_predict": 2}),
    "native, other path": ("/completions", {"prompt": "hi", "n_predict": 2}),
    "native, several": ("/completion", {"prompt": ["hi", "ho"], "n_predict": 2}),
    "native, probabilities": ("/completion", {"prompt": "hi", "n_predict": 2, "n_probs": 2}),
    "infill": ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
    "responses, messages": ("/v1/responses", {"input": MESSAGES, "max_output_tokens": 3}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 3}),
    "messages, system": ("/v1/messages", {"messages": MESSAGES, "system": "be kind", "max_tokens": 3}),
    "too long, chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    "too long, text": ("/v1/completions", {"prompt": LONG}),
    "too long, native": ("/completion", {"prompt": LONG}),
    "too long, responses": ("/v1/responses", {"input": LONG}),
    "too long, messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3},
    ),
    "empty, chat": ("/v1/chat/completions", {}),
    "empty, text": ("/v1/completions", {}),
    "empty, native": ("/completion", {}),
    "empty, infill": ("/infill", {}),
    "empty, responses": ("/v1/responses", {}),
    "empty, messages": ("/v1/messages", {}),
    "messages that are none": ("/v1/chat/completions", {"messages": "x"}),
    "too many choices": ("/v1/chat/completions", {"messages": MESSAGES, "n": 9, "max_tokens": 2}),
    "a bad number": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "temperature": "x"}),
}
OTHERS: dict[str, tuple[str, str, object]] = {
    **{f"GET {path}": ("GET", path, None) for path in ("/health", "/v1/health", "/props", "/metrics")},
    **{
        f"GET {path}": ("GET", path, None)
        for path in ("/v1/models", "/models", "/lora-adapters", "/nope", "/")
    },
    "a method that is not": ("GET", "/v1/chat/completions", None),
    "another": ("DELETE", "/health", None),
    "POST /health": ("POST", "/health", {}),
    "POST /props": ("POST", "/props", {}),
    "one model": ("GET", "/v1/models/tiny", None),
    "HEAD /health": ("HEAD", "/health", None),
    "HEAD /v1/models": ("HEAD", "/v1/models", None),
    "HEAD of a door": ("HEAD", "/v1/chat/completions", None),
    "OPTIONS": ("OPTIONS", "/v1/chat/completions", None),
    "count tokens": ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    "count tokens, empty": ("POST", "/v1/messages/count_tokens", {}),
    "tokenize": ("POST", "/tokenize", {"content": "hi there"}),
    "tokenize, empty": ("POST", "/tokenize", {}),
    "detokenize": ("POST", "/detokenize", {"tokens": [300, 301]}),
    "detokenize, empty": ("POST", "/detokenize", {}),
    "template": ("POST", "/apply-template", {"messages": MESSAGES}),
    "template, empty": ("POST", "/apply-template", {}),
    "embeddings, off": ("POST", "/v1/embeddings", {"input": "hi"}),
    "native embeddings, off": ("POST", "/embedding", {"content": "hi"}),
    "ranks, off": ("POST", "/v1/rerank", {"query": "a", "documents": ["b"]}),
    "audio": ("POST", "/v1/audio/transcriptions", b"{}"),
    **{
        f"no JSON, {path}": ("POST", path, b"{bad")
        for path in ("/v1/chat/completions", "/completion", "/v1/messages", "/tokenize", "/v1/responses")
    },
    "no body": ("POST", "/v1/chat/completions", b""),
}
EMBEDDINGS: dict[str, tuple[str, object]] = {
    "one": ("/v1/embeddings", {"input": "hi"}),
    "several": ("/v1/embeddings", {"input": ["hi", "ho"]}),
    "tokens": ("/v1/embeddings", {"input": [300, 301]}),
    "base64": ("/v1/embeddings", {"input": "hi", "encoding_format": "base64"}),
    "without v1": ("/embeddings", {"input": ["hi", "ho"]}),
    "native": ("/embedding", {"content": "hi"}),
    "nothing": ("/v1/embeddings", {}),
    "an empty list": ("/v1/embeddings", {"input": []}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
}
RANKS: dict[str, tuple[str, object]] = {
    "documents": ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}),
    "the first": ("/reranking", {"query": "a", "documents": ["b", "c"], "top_n": 1}),
    "texts": ("/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True}),
    "no documents": ("/v1/rerank", {"query": "a"}),
    "nothing": ("/v1/rerank", {}),
}
THOUGHTS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 30}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 30}),
}
PARAMETERS: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = [{"name": "weather", "arguments": {"city": "Oslo"}}]
SAID_AS_CALL = [
    "<tool_call>\n",
    '{"name": "weather", ',
    '"arguments": {"city": ',
    '"Oslo"',
    "}}",
    "\n</tool_call>",
]
CALLS: dict[str, tuple[str, Json]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 50,
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}],
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "hi",
            "max_output_tokens": 50,
            "tools": [{"type": "function", "name": "weather", "parameters": PARAMETERS}],
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 50,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
        },
    ),
}
THOUGHT = 'root ::= " the day</think> the night"'
FAKE_THOUGHT = {"reasoning": " the day", "text": " the night"}
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    machine = {"slots": 4, "n_ctx": 4096, "embeddings": False, "rerank": False}
    async with FakeServer(scene_of({"server": machine})) as server:
        yield server


@STREAMED
@pytest.mark.parametrize("case", SPOKEN)
async def test_generated_answers_have_the_real_shape(
    case: str, fake: FakeServer, tiny_llama: RealLlama, *, stream: bool
) -> None:
    path, body = SPOKEN[case]
    asked = {**body, "stream": True} if stream else body
    real = await contract_of(tiny_llama.url, "POST", path, asked)
    assert await contract_of(fake.url, "POST", path, asked) == real


@pytest.mark.parametrize("case", OTHERS)
async def test_other_answers_have_the_real_shape(case: str, fake: FakeServer, tiny_llama: RealLlama) -> None:
    method, path, body = OTHERS[case]
    real = await contract_of(tiny_llama.url, method, path, body)
    assert await contract_of(fake.url, method, path, body) == real


async def test_progress_of_the_prompt_has_the_real_shape(fake: FakeServer, tiny_llama: RealLlama) -> None:
    path, body = SPOKEN["chat, timings"]
    asked = {**body, "return_progress": True, "stream": True}
    real = await contract_of(tiny_llama.url, "POST", path, asked)
    assert await contract_of(fake.url, "POST", path, asked) == real


@STREAMED
@pytest.mark.parametrize("case", THOUGHTS)
async def test_reasoning_has_the_real_shape(
    case: str, fake: FakeServer, thinking_llama: RealLlama, *, stream: bool
) -> None:
    path, body = THOUGHTS[case]
    real = await contract_of(thinking_llama.url, "POST", path, {**body, "stream": stream, "grammar": THOUGHT})
    assert real == await contract_of(fake.url, "POST", path, {**body, "stream": stream, "fake": FAKE_THOUGHT})


@STREAMED
@pytest.mark.parametrize("case", CALLS)
async def test_tool_calls_have_the_real_shape(
    case: str, fake: FakeServer, calling_llama: RealLlama, *, stream: bool
) -> None:
    path, body = CALLS[case]
    asked = {**body, "temperature": 0, "stream": stream}
    real = await contract_of(calling_llama.url, "POST", path, asked)
    assert real == await contract_of(fake.url, "POST", path, {**asked, "fake": {"call": CALL}})


@STREAMED
async def test_endless_reasoning_on_messages_has_the_real_shape(
    fake: FakeServer, thinking_llama: RealLlama, *, stream: bool
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "stream": stream}
    real = await contract_of(thinking_llama.url, "POST", "/v1/messages", body)
    own = {"reasoning": "one two three four five six", "text": ""}
    assert real == await contract_of(fake.url, "POST", "/v1/messages", {**body, "fake": own})


async def test_slots_have_the_real_shape(tiny_model: Path, run_llama: RunLlama) -> None:
    """Slots before their first work, and with their latest work."""
    llama = run_llama(RealLlama(tiny_model, slots=1))
    async with FakeServer(scene_of({"server": {"slots": 1}})) as fake:
        for _ in range(2):
            for path in ("/slots", "/slots?fail_on_no_slot=1"):
                real = await contract_of(llama.url, "GET", path, None)
                assert await contract_of(fake.url, "GET", path, None) == real
            for url in (llama.url, fake.url):
                await contract_of(
                    url, "POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}
                )


async def test_vectors_have_the_real_shape(tiny_model: Path, run_llama: RunLlama) -> None:
    llama = run_llama(RealLlama(tiny_model, args=("--embeddings", "--pooling", "mean")))
    async with FakeServer(scene_of({"server": {"slots": 4, "embeddings": True}})) as fake:
        for case, (path, body) in EMBEDDINGS.items():
            real = await contract_of(llama.url, "POST", path, body)
            assert await contract_of(fake.url, "POST", path, body) == real, case


async def test_ranks_have_the_real_shape(tiny_model: Path, run_llama: RunLlama) -> None:
    llama = run_llama(RealLlama(tiny_model, args=("--rerank",)))
    async with FakeServer(scene_of({"server": {"slots": 4, "rerank": True}})) as fake:
        for case, (path, body) in RANKS.items():
            real = await contract_of(llama.url, "POST", path, body)
            assert await contract_of(fake.url, "POST", path, body) == real, case


async def test_a_missing_key_is_refused_as_by_the_real_program(tiny_model: Path, run_llama: RunLlama) -> None:
    llama = run_llama(RealLlama(tiny_model, args=("--api-key", "k")))
    asked = {"messages": MESSAGES, "max_tokens": 1}
    cases: list[tuple[str, str, object, list[bytes]]] = [
        ("GET", "/health", None, []),
        ("GET", "/v1/models", None, []),
        ("GET", "/props", None, []),
        ("GET", "/nope", None, []),
        ("POST", "/v1/chat/completions", asked, []),
        ("POST", "/v1/chat/completions", asked, [b"Authorization: Bearer k"]),
        ("POST", "/v1/chat/completions", asked, [b"X-Api-Key: k"]),
    ]
    async with FakeServer(scene_of({"server": {"slots": 4, "api_key": "k"}})) as fake:
        for method, path, body, headers in cases:
            real = await contract_of(llama.url, method, path, body, *headers)
            assert await contract_of(fake.url, method, path, body, *headers) == real, (path, headers)


async def test_disabled_endpoints_are_refused_as_by_the_real_program(
    tiny_model: Path, run_llama: RunLlama
) -> None:
    llama = run_llama(RealLlama(tiny_model, args=("--no-slots",)))
    async with FakeServer(scene_of({"server": {"slots": 4, "slots_endpoint": False}})) as fake:
        for path in ("/slots", "/props"):
            real = await contract_of(llama.url, "GET", path, None)
            assert await contract_of(fake.url, "GET", path, None) == real


async def test_a_cross_origin_request_is_answered_as_by_the_real_program(
    fake: FakeServer, tiny_llama: RealLlama
) -> None:
    origin = b"Origin: http://chat.example"
    path, body = SPOKEN["chat"]
    for method, asked in (
        ("OPTIONS", None),
        ("POST", body),
        ("POST", {**body, "stream": True}),
        ("POST", {}),
    ):
        real = await contract_of(tiny_llama.url, method, path, asked, origin)
        assert await contract_of(fake.url, method, path, asked, origin) == real


@pytest.fixture(scope="module")
def thinking_llama(tiny_model: Path) -> Iterator[RealLlama]:
    args = ("--chat-template", THINKING_TEMPLATE, "--reasoning-format", "deepseek")
    with RealLlama(tiny_model, args=args) as llama:
        yield llama


@pytest.fixture(scope="module")
def calling_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLlama]:
    """A real llama-server that answers every request with a tool call."""
    need_the_wheel()
    model = tmp_path_factory.mktemp("chain") / "chain.gguf"
    write_chain_model(model, SAID_AS_CALL, TOOL_TEMPLATE)
    with RealLlama(model, args=("--jinja",)) as llama:
        yield llama
