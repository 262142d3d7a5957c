"""The scripted upstream answers in the shape of the real program: same events, keys and order."""

from __future__ import annotations

import orjson
import pytest

from tests.support.client import RawClient, read_stream
from tests.support.llama import RealLlama
from tests.support.llama_like import LlamaLike
from tests.support.scripted import ScriptedUpstream
from tests.support.sse import data_of

pytestmark = pytest.mark.anyio

BODY = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "max_tokens": 3}
PATHS = ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses", "/v1/messages"]
SHORTENED = {"generation_settings", "params", "meta", "ui_settings", "chat_template_caps", "details"}
"""Objects of which the scripted upstream sends only some members."""


def shape(value: object) -> object:
    """Return the keys in order with the kinds of their values. All numbers are one kind."""
    if isinstance(value, dict):
        return [(key, "..." if key in SHORTENED else shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "number" if type(value) in (int, float) else type(value).__name__


def shape_of_frame(frame: bytes) -> object:
    name, _, _ = frame.rpartition(b"data: ")
    content = data_of(frame)
    return name, content if content == b"[DONE]" else shape(orjson.loads(content))


async def stream_shape(url: str, path: str, body: dict[str, object]) -> list[object]:
    return [shape_of_frame(frame.data) for frame in await read_stream(url, path, {**body, "stream": True})]


async def whole_shape(url: str, path: str, body: dict[str, object]) -> object:
    async with await RawClient.connect(url) as client:
        head = await client.post(path, body)
        names = [name for name, _ in head.headers if name.startswith(b"content")]
        return head.start_line, names, shape(orjson.loads(await client.body()))


@pytest.mark.parametrize("path", PATHS)
async def test_streams_have_the_real_shape(path: str, tiny_llama: RealLlama) -> None:
    async with ScriptedUpstream() as fu:
        assert await stream_shape(tiny_llama.url, path, BODY) == await stream_shape(fu.url, path, BODY)


async def test_a_stream_with_usage_has_the_real_shape(tiny_llama: RealLlama) -> None:
    body = {**BODY, "stream_options": {"include_usage": True}}
    async with ScriptedUpstream() as fu:
        assert await stream_shape(tiny_llama.url, PATHS[0], body) == await stream_shape(
            fu.url, PATHS[0], body
        )


@pytest.mark.parametrize("path", PATHS)
async def test_whole_answers_have_the_real_shape(path: str, tiny_llama: RealLlama) -> None:
    async with ScriptedUpstream() as fu:
        assert await whole_shape(tiny_llama.url, path, BODY) == await whole_shape(fu.url, path, BODY)


@pytest.mark.parametrize("path", ["/health", "/slots", "/v1/models", "/nope"])
async def test_the_control_plane_has_the_real_keys(path: str, tiny_llama: RealLlama) -> None:
    async with ScriptedUpstream(llama=LlamaLike(slots=tiny_llama.slots)) as fu:
        assert await control_keys(fu.url, path) <= await control_keys(tiny_llama.url, path)


async def control_keys(url: str, path: str) -> set[str]:
    async with await RawClient.connect(url) as client:
        head = await client.request("GET", path)
        content = orjson.loads(await client.body())
        return {head.start_line.decode(), *(content if isinstance(content, dict) else content[0])}


async def test_props_has_the_real_keys(tiny_llama: RealLlama) -> None:
    async with ScriptedUpstream() as fu:
        assert await control_keys(fu.url, "/props") <= await control_keys(tiny_llama.url, "/props")
