"""Scripted faults have their form on the wire, and the gateway handles them."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from slotgate.gateway.testing.fake import FakeServer, scene_of
from tests.support.client import RawClient, read_stream
from tests.support.gateway import error_in, running_gateway, settings_for, text_of
from tests.support.notation import DONE

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def asking(fault: object, *, stream: bool = True, **members: Any) -> dict[str, Any]:  # noqa: ANN401
    said = {"text": "one two three", "fault": fault, **members}
    return {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "fake": said}


def playing(**server: Any) -> FakeServer:  # noqa: ANN401
    return FakeServer(scene_of({"server": server}))


async def raw(url: str, body: dict[str, Any]) -> tuple[bytes, bool | None]:
    """Return the bytes of the body, and True if it had its proper end."""
    async with await RawClient.connect(url) as client:
        await client.post(CHAT, body)
        return await client.body(), client.clean_end


def words(content: bytes) -> list[str]:
    lines = (line[6:] for line in content.split(b"\n") if line.startswith(b'data: {"choices'))
    deltas = (orjson.loads(line)["choices"][0]["delta"] for line in lines)
    return [delta["content"] for delta in deltas if delta.get("content")]


async def test_an_error_comes_in_place_of_an_answer() -> None:
    fault = {"kind": "error", "status": 503, "message": "no", "type": "unavailable_error"}
    async with playing() as fake, await RawClient.connect(fake.url) as client:
        await client.post(CHAT, asking(fault))
        assert client.status == 503
        assert (await client.json())["error"] == {"code": 503, "message": "no", "type": "unavailable_error"}


async def test_a_request_or_the_whole_server_can_answer_loading() -> None:
    async with playing(load_s=0.2) as fake:
        for path in ("/health", "/props"):
            async with await RawClient.connect(fake.url) as client:
                await client.request("GET", path)
                assert client.status == 503
        async with asyncio.timeout(5):
            while fake.llama.loading:
                await asyncio.sleep(0.01)
        async with await RawClient.connect(fake.url) as client:
            await client.post(CHAT, asking("loading"))
            assert (client.status, (await client.json())["error"]["message"]) == (503, "Loading model")
        async with await RawClient.connect(fake.url) as client:
            assert (await client.request("GET", "/health")).start_line == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        (CHAT, b'data: {"error":{"code":500,"message":"m","type":"t"}}\n\n'),
        ("/v1/completions", b'data: {"error":{"code":500,"message":"m","type":"t"}}\n\n'),
        ("/v1/responses", b'data: {"code":500,"message":"m","type":"t"}\n\n'),
        ("/v1/messages", b'event: error\ndata: {"code":500,"message":"m","type":"t"}\n\n'),
    ],
)
async def test_an_error_frame_has_the_form_of_its_protocol_and_ends_the_body(path: str, frame: bytes) -> None:
    fault = {"kind": "error-frame", "after": 2, "message": "m", "type": "t"}
    async with playing() as fake, await RawClient.connect(fake.url) as client:
        await client.post(path, {**asking(fault), "prompt": "hi", "input": "hi"})
        content = await client.body()
        assert content.endswith(frame)
        assert b"[DONE]" not in content
        assert client.clean_end


async def test_an_old_error_frame_is_a_field_of_its_own() -> None:
    async with playing() as fake:
        content, clean = await raw(fake.url, asking({"kind": "old-error-frame", "after": 1, "message": "m"}))
    assert content.endswith(b'error: {"code":500,"message":"m","type":"server_error"}\n\n')
    assert clean


@pytest.mark.parametrize("kind", ["truncate", "rst"])
async def test_a_stream_can_be_truncated(kind: str) -> None:
    async with playing() as fake:
        content, clean = await raw(fake.url, asking({"kind": kind, "after": 2}, tokens_per_s=50))
        assert (words(content), clean) == (["one", " two"], False)
        assert not fake.llama.slots.busy


@pytest.mark.parametrize("kind", ["truncate", "wrong-length"])
async def test_a_buffered_answer_can_be_truncated(kind: str) -> None:
    async with playing() as fake:
        content, clean = await raw(fake.url, asking(kind, stream=False))
    assert content.startswith(b'{"choices"')
    assert clean is False


async def test_a_stalled_answer_keeps_its_slot_until_its_client_is_missed() -> None:
    async with playing(quiet_s=0.2) as fake:
        async with await RawClient.connect(fake.url) as client:
            await client.post(CHAT, asking({"kind": "stall", "after": 1}))
            pieces = client.pieces(within=0.3)
            assert words(await anext(pieces)) == ["one"]
            with pytest.raises(TimeoutError):
                await anext(pieces)
            assert fake.llama.slots.busy
        async with asyncio.timeout(5):
            while fake.llama.slots.busy:
                await asyncio.sleep(0.01)
    assert fake.llama.served_requests[0].outcome == "abandoned"


async def test_streams_can_have_crlf_and_a_byte_order_mark() -> None:
    async with playing() as fake:
        crlf, _ = await raw(fake.url, asking("crlf"))
        bom, _ = await raw(fake.url, asking("bom"))
    assert crlf.count(b"\r\n") == crlf.count(b"\n") > 6
    assert bom.startswith(b"\xef\xbb\xbfdata: ")


async def test_events_can_be_cut_inside_a_character() -> None:
    async with playing() as fake, await RawClient.connect(fake.url) as client:
        await client.post(CHAT, asking({"kind": "half-frames", "seconds": 0.02}, text="é"))
        pieces = [piece async for piece in client.pieces()]
    assert any(piece.endswith(b"\xc3") for piece in pieces)
    assert words(b"".join(pieces)) == ["é"]


async def test_a_token_can_be_giant() -> None:
    async with playing(n_ctx=100000) as fake:
        content, _ = await raw(fake.url, asking({"kind": "giant-frame", "after": 1, "bytes": 300_000}))
    assert [len(word) for word in words(content)] == [3, 300_000, 4, 6]


async def test_the_sentinel_can_be_missing_and_a_frame_can_be_garbage() -> None:
    async with playing() as fake:
        content, clean = await raw(fake.url, asking("no-done"))
        assert (DONE in content, clean, words(content)) == (False, True, ["one", " two", " three"])
        content, _ = await raw(fake.url, asking({"kind": "garbage", "after": 1}))
        assert b'data: {"choices":[{"delta":{"content":\n\n' in content


async def test_the_end_of_the_body_can_be_late() -> None:
    async with playing() as fake, await RawClient.connect(fake.url) as client:
        await client.post(CHAT, asking({"kind": "slow-close", "seconds": 0.4}))
        seen = b""
        async for piece in client.pieces():
            seen += piece
            if DONE in seen:
                break
        before = client.clean_end
        assert not fake.llama.slots.busy
        assert await client.body() == b""
        assert (before, client.clean_end) == (None, True)


async def test_a_crash_ends_every_connection_and_the_server_comes_back() -> None:
    async with playing(slots=2) as fake:
        async with await RawClient.connect(fake.url) as other:
            await other.post(CHAT, asking({"kind": "stall", "after": 1}))
            _, whole = await raw(fake.url, asking({"kind": "crash", "seconds": 0.2}, tokens_per_s=50))
            await other.body()
            assert (whole, other.clean_end) == (False, False)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(fake.url)
        async with asyncio.timeout(5):
            while True:
                try:
                    assert words((await raw(fake.url, asking("bom")))[0]) == ["one", " two", " three"]
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)


async def test_all_streams_can_end_together() -> None:
    async with playing(slots=2) as fake:
        endless = asking({"kind": "stall", "after": 1})
        fatal = asking({"kind": "kv-exhausted", "after": 2}, tokens_per_s=20)
        contents = await asyncio.gather(raw(fake.url, endless), raw(fake.url, fatal))
    for content, clean in contents:
        assert b"Context size has been exceeded." in content
        assert clean


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"kind": "truncate", "after": 2}, "upstream_truncated"),
        ({"kind": "rst", "after": 2}, "upstream_truncated"),
        ({"kind": "kv-exhausted", "after": 2}, None),
        ({"kind": "no-done"}, None),
    ],
)
async def test_through_a_gateway_a_failure_in_the_stream_is_one_framed_error(
    fault: dict[str, Any], code: str | None
) -> None:
    async with playing(model="m", quiet_s=0.1) as fake, running_gateway(settings_for(fake.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, asking(fault, tokens_per_s=50))
        if fault["kind"] == "no-done":
            assert text_of(frames) == "one two three"
            return
        assert code in (None, error_in(frames)["code"])


@pytest.mark.parametrize("kind", ["crlf", "bom", "half-frames", "giant-frame", "slow-close"])
async def test_through_a_gateway_an_unusual_form_does_not_change_the_answer(kind: str) -> None:
    fault = {"kind": kind, "seconds": 0.01, "bytes": 100_000, "after": 1}
    async with playing(model="m") as fake, running_gateway(settings_for(fake.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, asking(fault))
        said = text_of(frames).replace("x" * 100_000, "")
        assert (said, frames[-1].data) == ("one two three", DONE)
