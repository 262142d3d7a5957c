"""A real llama-server gives the same answer directly and through the gateway.

All fields are compared except those that the gateway owns (id, model, created), those that are new for each
answer (ids of items and calls, times), and those that it adds for clients of Responses. Streams are compared
event by event. If there are several choices, whose order varies, they are compared choice by choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import WholeResponse, exchange
from tests.support.client import request_bytes
from tests.support.fixtures import need_the_wheel
from tests.support.gateway import running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.tiny_model import THINKING_TEMPLATE, WORDS

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.slow]

Json = dict[str, Any]
KEY = b"authorization: Bearer sg-t"
TENANT = {"name": "t", "key_hashes": [hash_key(b"sg-t")], "allow_id_slot": True}
PNG = "data:image/png;base64,iVBORw0KGgo="
OWNED = {"id", "model", "created", "created_at", "completed_at", "item_id", "call_id", "encrypted_content"}
ADDED = {"sequence_number", "output_index", "content_index"}
ADDED_TO_RESPONSE = {"model", "created_at"}
REASONING_BEGINS = {
    "type": "response.content_part.added",
    "item_id": "…",
    "part": {"type": "reasoning_text", "text": ""},
}
TIMES = ("_ms", "per_second", "time_ms")

ONE_SLOT = ("-np", "1")
"""Texts that are computed side by side change each other's last digits, and the tiny model's ranks."""
ARGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "thinking": ("--chat-template", THINKING_TEMPLATE, "--reasoning-format", "deepseek"),
    "embeddings": ("--embeddings", "--pooling", "mean", *ONE_SLOT),
    "ranking": ("--rerank", *ONE_SLOT),
    "sentences": (),
}
FIXED = {"temperature": 0, "seed": 1, "cache_prompt": False}
MESSAGES = [{"role": "user", "content": "tell me of the old house"}]
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo"]}},
            "required": ["city"],
        },
    },
}
SCHEMA: Json = {"type": "object", "properties": {"a": {"enum": [1, "two"]}}, "required": ["a"]}
THOUGHT = 'root ::= " the day</think> the night"'


def chat(**members: object) -> Json:
    return {"messages": MESSAGES, "max_tokens": 8, **FIXED, **members}


def text(**members: object) -> Json:
    return {"prompt": "the old house", "max_tokens": 8, **FIXED, **members}


def native(**members: object) -> Json:
    return {"prompt": "the old house", "n_predict": 8, **FIXED, **members}


CHATS: dict[str, Json] = {
    "plain": chat(),
    "usage": chat(stream_options={"include_usage": True}),
    "tools, required": chat(tools=[WEATHER], tool_choice="required", max_tokens=80),
    "tools, auto": chat(tools=[WEATHER], tool_choice="auto"),
    "tools, none": chat(tools=[WEATHER], tool_choice="none"),
    "tools, bad": chat(tools=[WEATHER], tool_choice=5),
    "schema": chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, max_tokens=40),
    "json": chat(response_format={"type": "json_object", "schema": SCHEMA}, max_tokens=40),
    "grammar": chat(grammar='root ::= " day" | " night"'),
    "bad grammar": chat(grammar="root ::="),
    "logprobs": chat(logprobs=True, top_logprobs=3),
    "choices": chat(n=3, temperature=1),
    "choices, usage": chat(n=2, stream_options={"include_usage": True}),
    "stop": chat(stop=[" the", " a", *(f" {word}" for word in WORDS[:60])]),
    "timings": chat(timings_per_token=True),
    "progress": chat(return_progress=True),
    "parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a house"}]}]),
    "image": chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]),
    "slot": chat(id_slot=2),
    "lora": chat(lora=[{"id": 0, "scale": 0.5}]),
    "lora, bad": chat(lora="x"),
    "unknown": chat(x_unknown={"a": [1.0, 2**53, 1e20]}, user="u", metadata={"a": "b"}),
    "numbers": chat(temperature=0.0, top_p=1e-1, min_p=0.30000000000000004),
    "bias": chat(logit_bias=[[300, 5.5]]),
    "too long": chat(messages=[{"role": "user", "content": "the " * 6000}]),
    "no role": chat(messages=[{"role": "nobody", "content": "a"}]),
    "null content": chat(messages=[{"role": "user", "content": None}]),
}
OTHERS: dict[str, tuple[str, Json]] = {
    "text": ("/v1/completions", text()),
    "text, logprobs": ("/v1/completions", text(logprobs=2)),
    "text, choices": ("/v1/completions", text(n=2)),
    "text, prompts": ("/v1/completions", text(prompt=["the house", "a night"])),
    "text, tokens": ("/v1/completions", text(prompt=[300, 301, 302])),
    "text, usage": ("/v1/completions", text(stream_options={"include_usage": True})),
    "text, echo": ("/v1/completions", text(echo=True)),
    "text, bad": ("/v1/completions", text(suffix=5, grammar="root ::=")),
    "native": ("/completion", native()),
    "text, prompts and choices": ("/v1/completions", text(prompt=["the house", [300], "a"], n=2)),
    "native, prompts and choices": ("/completion", native(prompt=["the house", "a"], n=2)),
    "native, prompts with fields": ("/completion", native(prompt=["a", "b"], response_fields=["content"])),
    "native, prompts": ("/completion", native(prompt=["the house", [300, 301]])),
    "native, choices": ("/completion", native(n=2)),
    "native, mixed": ("/completion", native(prompt=["the", 300, "house"])),
    "native, probabilities": ("/completion", native(n_probs=2, post_sampling_probs=True)),
    "native, slot": ("/completion", native(id_slot=1)),
    "native, tokens": ("/completion", native(return_tokens=True, timings_per_token=True)),
    "native, fields": ("/completion", native(response_fields=["content", "generation_settings/n_predict"])),
    "native, schema": ("/completion", native(json_schema=SCHEMA, n_predict=40)),
    "infill": ("/infill", {"input_prefix": "the", "input_suffix": "house", "n_predict": 6, **FIXED}),
    "infill, extra": (
        "/infill",
        {
            "input_prefix": "the",
            "input_suffix": "house",
            "input_extra": [{"filename": "a", "text": "old"}],
            "n_predict": 6,
            **FIXED,
        },
    ),
    "infill, bad": ("/infill", {"input_prefix": 5}),
    "responses": ("/v1/responses", {"input": "the old house", "max_output_tokens": 8, **FIXED}),
    "responses, items": (
        "/v1/responses",
        {"input": MESSAGES, "instructions": "be old", "max_output_tokens": 8, **FIXED},
    ),
    "responses, tools": (
        "/v1/responses",
        {
            "input": "the",
            "tools": [{"type": "function", **WEATHER["function"]}],
            "tool_choice": "required",
            "max_output_tokens": 80,
            **FIXED,
        },
    ),
    "responses, bad": ("/v1/responses", {"input": 5}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}),
    "messages, system": (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "be old"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "the house"}]}],
            "max_tokens": 8,
            "temperature": 0,
        },
    ),
    "messages, tools": (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 80,
            "temperature": 0,
            "tools": [{"name": "weather", "input_schema": WEATHER["function"]["parameters"]}],
            "tool_choice": {"type": "any"},
        },
    ),
}
WHOLE_ONLY: dict[str, tuple[str, Json]] = {
    "responses, several": ("/v1/responses", {"input": "the", "n": 2, "max_output_tokens": 8, **FIXED}),
    "a prompt too long": ("/v1/completions", text(prompt=["a", "the " * 6000])),
    "count": ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    "tokenize": ("/tokenize", {"content": "the old house", "add_special": True, "with_pieces": True}),
    "detokenize": ("/detokenize", {"tokens": [300, 301]}),
    "template": ("/apply-template", {"messages": MESSAGES}),
    "no ears": ("/v1/embeddings", {"input": "the"}),
    "no ranks": ("/v1/rerank", {"query": "a", "documents": ["b"]}),
}
THINKING: dict[str, tuple[str, Json]] = {
    "thinks": ("/v1/chat/completions", chat(grammar=THOUGHT, max_tokens=40)),
    "thinks on": ("/v1/chat/completions", chat()),
    "does not": ("/v1/chat/completions", chat(chat_template_kwargs={"enable_thinking": False})),
    "inline": ("/v1/chat/completions", chat(reasoning_format="none", grammar=THOUGHT, max_tokens=40)),
    "responses": (
        "/v1/responses",
        {"input": "the", "max_output_tokens": 40, "grammar": THOUGHT, **FIXED},
    ),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}),
}
EMBEDDINGS: dict[str, tuple[str, Json]] = {
    "one": ("/v1/embeddings", {"input": "the old house"}),
    "many": ("/v1/embeddings", {"input": ["the", "old house"]}),
    "many, nested": ("/v1/embeddings", {"input": [[300, 301], ["the", 300], {"prompt_string": "a"}]}),
    "single": ("/v1/embeddings", {"input": ["the"]}),
    "tokens": ("/v1/embeddings", {"input": [300, 301]}),
    "base64": ("/v1/embeddings", {"input": ["the", "old"], "encoding_format": "base64"}),
    "native": ("/embedding", {"content": ["the", "old"]}),
    "native, input": ("/embedding", {"input": ["the", "a"], "content": "old"}),
    "too long": ("/v1/embeddings", {"input": ["the", "the " * 3000]}),
    "bad format": ("/v1/embeddings", {"input": "the", "encoding_format": "x"}),
}
RANKING: dict[str, tuple[str, Json]] = {
    "documents": ("/v1/rerank", {"query": "the", "documents": ["old", "house"]}),
    "one": ("/reranking", {"query": "the", "documents": ["old", "house", "a day"], "top_n": 1}),
    "none": ("/v1/rerank", {"query": "the", "documents": ["old", "house"], "top_n": 0}),
    "more": ("/v1/rerank", {"query": "the", "documents": ["old", ""], "top_n": 9}),
    "bad number": ("/v1/rerank", {"query": "the", "documents": ["old", "house"], "top_n": -1}),
    "bad document": ("/v1/rerank", {"query": "the", "documents": ["old", 5]}),
    "both": ("/v1/rerank", {"query": "the", "documents": ["old", "house"], "texts": ["a"]}),
    "texts": ("/rerank", {"query": "the", "texts": ["old", "house"], "return_text": True}),
    "no text": ("/rerank", {"query": "the", "texts": ["old"], "top_n": 0}),
}


@pytest.fixture(scope="module")
def llama(request: pytest.FixtureRequest) -> Iterator[RealLlama]:
    need_the_wheel()
    model = request.getfixturevalue("small_model" if request.param == "sentences" else "tiny_model")
    with RealLlama(model, args=ARGS[request.param]) as llama:
        yield llama


def served_by(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("llama", [kind], indirect=True)


IN_BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def both(llama: RealLlama, path: str, body: Json) -> tuple[WholeResponse, WholeResponse]:
    """Return the direct answer, and the one through the gateway."""
    request = request_bytes("POST", path, KEY, json=body)
    async with running_gateway(settings_for(llama.url, tenant=[TENANT])) as gateway:
        return await exchange(llama.url, request, 20), await exchange(gateway.url, request, 20)


async def compare(llama: RealLlama, path: str, body: Json, *, stream: bool) -> WholeResponse:
    direct, through = await both(llama, path, {**body, "stream": True} if stream else body)
    assert through.status == direct.status, (direct, through)
    if direct.status != 200:
        ours = through.json["error"]
        theirs = direct.json["error"]
        if path.startswith("/v1/messages"):  # its errors have Anthropic's types
            assert ours["message"] == theirs["message"]
        else:
            assert ours == theirs
    elif stream:
        assert events(through.body) == events(direct.body)
    else:
        said, expected = (normalised(orjson.loads(one.body)) for one in (through, direct))
        if path == "/v1/completions" and isinstance(body["prompt"], list):
            said["usage"] = expected["usage"]  # llama-server states that of the first prompt
        for part in (*said, *expected) if isinstance(said, list) else ():
            part.pop("id_slot", None)
        assert said == expected
    return direct


def normalised(said: Any) -> Any:  # noqa: ANN401
    if isinstance(said, list):
        return [normalised(one) for one in said]
    if not isinstance(said, dict):
        return said
    added = ADDED | (ADDED_TO_RESPONSE if said.get("object") == "response" else set())
    return {
        name: "…" if name in OWNED or name.endswith(TIMES) else normalised(value)
        for name, value in said.items()
        if name not in added and (name, value) != ("output", [])
    }


def events(body: bytes) -> dict[Any, list[Any]]:
    """Return the events of a stream in order, by choice. The ends of all choices are under None."""
    found: dict[Any, list[Any]] = {}
    for event in body.split(b"\n\n"):
        lines = dict(line.partition(b": ")[::2] for line in event.split(b"\n") if line)
        payload = lines.get(b"data", b"null")
        if payload == b"null":
            continue
        said = payload if payload == b"[DONE]" else normalised(orjson.loads(payload))
        if said == REASONING_BEGINS:  # llama-server leaves this event out
            continue
        found.setdefault(_choice(said), []).append((lines.get(b"event"), said))
    return found


def _choice(said: Any) -> object:  # noqa: ANN401
    if not isinstance(said, dict):
        return None
    choices = said.get("choices")
    return choices[0].get("index") if choices else said.get("index") if "content" in said else None


@IN_BOTH_MODES
@pytest.mark.parametrize("case", CHATS)
@served_by("plain")
async def test_a_chat_is_answered_as_directly(llama: RealLlama, case: str, *, stream: bool) -> None:
    await compare(llama, "/v1/chat/completions", CHATS[case], stream=stream)


@IN_BOTH_MODES
@pytest.mark.parametrize("case", OTHERS)
@served_by("plain")
async def test_other_endpoints_answer_as_directly(llama: RealLlama, case: str, *, stream: bool) -> None:
    path, body = OTHERS[case]
    if (
        path == "/v1/messages"
    ):  # which cannot be told to leave the cache alone: what it has of it is the same then
        await exchange(llama.url, request_bytes("POST", path, json=body), 20)
    await compare(llama, path, body, stream=stream)


@pytest.mark.parametrize("case", WHOLE_ONLY)
@served_by("plain")
async def test_endpoints_without_streams_answer_as_directly(llama: RealLlama, case: str) -> None:
    path, body = WHOLE_ONLY[case]
    await compare(llama, path, body, stream=False)


@IN_BOTH_MODES
@pytest.mark.parametrize("case", THINKING)
@served_by("thinking")
async def test_thoughts_arrive_as_directly(llama: RealLlama, case: str, *, stream: bool) -> None:
    path, body = THINKING[case]
    if path == "/v1/messages":
        await exchange(llama.url, request_bytes("POST", path, json=body), 20)
    await compare(llama, path, body, stream=stream)


@IN_BOTH_MODES
@pytest.mark.parametrize("case", ["schema", "json", "tools, required", "logprobs"])
@served_by("sentences")
async def test_a_model_that_makes_sentences_answers_as_directly(
    llama: RealLlama, case: str, *, stream: bool
) -> None:
    """The tiny model cannot follow a schema behind a chat template, because its tokens begin with spaces."""
    direct = await compare(llama, "/v1/chat/completions", CHATS[case], stream=stream)
    assert direct.status == 200


@served_by("thinking")
async def test_the_thinking_model_does_think(llama: RealLlama) -> None:
    direct, _ = await both(llama, "/v1/chat/completions", THINKING["thinks"][1])
    message = direct.json["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"]


@pytest.mark.parametrize("case", EMBEDDINGS)
@served_by("embeddings")
async def test_vectors_arrive_as_directly(llama: RealLlama, case: str) -> None:
    path, body = EMBEDDINGS[case]
    await compare(llama, path, body, stream=False)


@pytest.mark.parametrize("case", RANKING)
@served_by("ranking")
async def test_ranks_arrive_as_directly(llama: RealLlama, case: str) -> None:
    path, body = RANKING[case]
    await compare(llama, path, body, stream=False)


@served_by("plain")
async def test_audio_without_ears_is_the_backends_own_error(llama: RealLlama) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
    kind = b"content-type: multipart/form-data; boundary=b"
    request = request_bytes("POST", "/v1/audio/transcriptions", KEY, kind, body=form)
    async with running_gateway(settings_for(llama.url, tenant=[TENANT])) as gateway:
        direct, through = await exchange(llama.url, request), await exchange(gateway.url, request)
    assert (through.status, through.json) == (direct.status, direct.json)
