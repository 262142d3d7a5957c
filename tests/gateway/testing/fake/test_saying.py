"""The answers of the scripted llama-server: matched by the request, and equal for equal seeds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from slotgate.gateway.testing.fake import FakeServer, scene_of
from tests.support.client import RawClient, read_stream
from tests.support.gateway import data_of, running_gateway, settings_for, text_of

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
SCRIPT: dict[str, Any] = {
    "server": {"slots": 2},
    "default": {"text": "by default"},
    "reply": [
        {"model": "a", "text": "by model"},
        {"contains": "rain", "text": "by text"},
        {"path": "/v1/responses", "text": "by path"},
        {"tools": True, "call": [{"name": "f", "arguments": {"x": 1}}]},
        {"contains": "again", "nth": 2, "text": "the second time"},
        {"contains": "once", "times": 1, "text": "only once"},
    ],
}


def chat(text: str = "hi", **members: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"messages": [{"role": "user", "content": text}], **members}


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    async with FakeServer(scene_of(SCRIPT)) as server:
        yield server


async def message(url: str, body: dict[str, Any], *headers: bytes) -> dict[str, Any]:
    async with await RawClient.connect(url) as client:
        await client.post(CHAT, body, *headers)
        said: dict[str, Any] = (await client.json())["choices"][0]["message"]
        return said


async def test_the_first_matching_reply_answers(fake: FakeServer) -> None:
    assert (await message(fake.url, chat()))["content"] == "by default"
    assert (await message(fake.url, chat(model="a")))["content"] == "by model"
    assert (await message(fake.url, chat("will it rain?")))["content"] == "by text"
    assert (await message(fake.url, chat("will it rain?", model="a")))["content"] == "by model"


async def test_a_reply_can_be_for_the_nth_request_or_the_first_few(fake: FakeServer) -> None:
    said = [(await message(fake.url, chat("again")))["content"] for _ in range(3)]
    assert said == ["by default", "the second time", "by default"]
    said = [(await message(fake.url, chat("once")))["content"] for _ in range(2)]
    assert said == ["only once", "by default"]


async def test_a_reply_can_require_tools(fake: FakeServer) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    [call] = (await message(fake.url, chat(tools=tools)))["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}


async def test_headers_and_the_body_can_change_the_reply_of_a_request(fake: FakeServer) -> None:
    assert (await message(fake.url, chat(), b"x-fake-text: by header"))["content"] == "by header"
    by_body = chat(fake={"text": "by body", "reasoning": "hm"})
    assert await message(fake.url, by_body, b"x-fake-text: by header") == {
        "role": "assistant",
        "content": "by body",
        "reasoning_content": "hm",
    }


async def test_an_invalid_change_of_the_reply_is_refused(fake: FakeServer) -> None:
    async with await RawClient.connect(fake.url) as client:
        await client.post(CHAT, chat(fake={"txt": 1}))
        assert (client.status, (await client.json())["error"]["message"]) == (400, "fake: fake.txt: unknown")


async def test_the_body_changes_the_reply_through_a_gateway(fake: FakeServer) -> None:
    async with running_gateway(settings_for(fake.url)) as gateway:
        body = chat(fake={"text": "as I said"}, stream=True)
        assert text_of(await read_stream(gateway.url, CHAT, body)) == "as I said"


async def test_the_same_seed_gives_the_same_bytes() -> None:
    async def told(seed: int) -> list[bytes]:
        async with FakeServer(scene_of({"server": {"seed": seed}})) as fake:
            bodies = [chat(stream=True), chat(stream=True), chat("x", stream=True, fake={"reasoning": "r"})]
            streams = [await read_stream(fake.url, CHAT, body) for body in bodies]
            return [frame.data for frames in streams for frame in frames]

    assert await told(1) == await told(1)
    assert await told(1) != await told(2)


async def test_a_repeated_request_gets_other_words(fake: FakeServer) -> None:
    async with FakeServer(scene_of({})) as plain:
        first, second = [(await message(plain.url, chat()))["content"] for _ in range(2)]
    assert first != second


async def test_a_token_limit_cuts_the_answer_with_finish_reason_length(fake: FakeServer) -> None:
    frames = await read_stream(fake.url, CHAT, chat(stream=True, max_tokens=1))
    assert text_of(frames) == "by"
    assert data_of(frames)[-1]["choices"][0]["finish_reason"] == "length"


async def test_served_requests_can_be_looked_up(fake: FakeServer) -> None:
    await message(fake.url, chat(), b"x-request-id: r1")
    [served] = fake.llama.served_requests
    assert (served.request_id, served.status, served.outcome) == ("r1", 200, "complete")
    assert served.request.last_user_text == "hi"


async def test_a_strict_script_refuses_requests_that_no_reply_matches() -> None:
    async with FakeServer(scene_of({**SCRIPT, "server": {"strict": True}})) as fake:
        async with await RawClient.connect(fake.url) as client:
            await client.post(CHAT, chat())
            assert client.status == 404
        assert fake.llama.served_requests[0].outcome == "unmatched"


async def test_tokenizing_and_detokenizing_give_the_text_back(fake: FakeServer) -> None:
    text = "Grüße, 세계 😀\x00!"
    async with await RawClient.connect(fake.url) as client:
        await client.post("/tokenize", {"content": text, "with_pieces": True})
        tokens = (await client.json())["tokens"]
        await client.post("/detokenize", {"tokens": [token["id"] for token in tokens]})
        assert (await client.json())["content"] == text
    assert all(isinstance(token["piece"], str | list) for token in tokens)
    assert orjson.dumps(tokens)
