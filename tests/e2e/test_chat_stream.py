"""A streamed chat, end to end: real sockets, the real uvicorn protocol, a scripted upstream."""

from __future__ import annotations

import orjson
import pytest

from tests.support.client import read_stream
from tests.support.gateway import CHAT, ask, chat, data_of, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, USE, H, T, answer, chunked
from tests.support.script import Fin, Script, Write, bytewise, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


async def test_a_chat_streams_under_the_gateways_own_identity_and_ends_with_done() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2, tokens=5))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat(model="m"))
    assert frames[-1].data == DONE
    chunks = data_of(frames)
    assert {chunk["model"] for chunk in chunks} == {"m"}
    [answer_id] = {chunk["id"] for chunk in chunks}
    assert answer_id.startswith("chatcmpl-")
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert len(fu.generations) == 1


async def test_the_headers_of_a_stream_forbid_buffering_and_name_the_request() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        head = await client.post(CHAT, chat(), b"x-request-id: my-own.id:1")
        await client.body()
    headers = dict(head.headers)
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"x-request-id"] == b"my-own.id:1"
    assert b"queue;dur=" in headers[b"server-timing"]
    assert b"upstream;dur=" in headers[b"server-timing"]
    assert b"content-encoding" not in headers


async def test_a_whole_answer_keeps_its_fields_and_gets_the_gateways_identity() -> None:
    said = {
        "id": "chatcmpl-theirs",
        "created": 1,
        "model": "/srv/models/tiny.gguf",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "something_new": {"kept": [1, 2.5, None]},
    }
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, said))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.post(CHAT, chat(stream=False))
        got = await client.json()
    assert client.status == 200
    assert got["id"] != said["id"]
    assert got["model"] == "m"
    assert {**got, "id": 0, "created": 0, "model": 0} == {**said, "id": 0, "created": 0, "model": 0}


@pytest.mark.parametrize(("inside", "text"), [(b"caf\xff", "caf\ufffd"), (b"\\ud83d", "\ufffd")])
async def test_scenario_086_broken_text_in_a_whole_answer_is_mended(inside: bytes, text: str) -> None:
    """Half a character costs no client the rest of its answer, in a stream or in a whole answer."""
    said = b'{"model":"m","p":NaN,"choices":[{"index":0,"message":{"content":"%s"}}]}' % inside
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, said))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
    assert got.json["choices"][0]["message"]["content"] == text
    assert got.json["p"] is None


async def test_the_clients_headers_do_not_reach_the_backend() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        secret = b"authorization: Bearer sk-CANARY"
        trace = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await client.post(CHAT, chat(), secret, b"x-conversation-id: 7", b"cookie: a=b", trace)
        await client.body()
        names = {name for name, _ in fu.generations[0].head.headers}
    assert names == {
        b"host",
        b"accept-encoding",
        b"content-type",
        b"accept",
        b"x-request-id",
        b"traceparent",
        b"x-slotgate-via",
        b"content-length",
    }


async def test_the_body_passes_as_it_was_written_except_for_members_that_must_change() -> None:
    fu = ScriptedUpstream()
    big = b"123456789012345678901234567890"
    body = b'{ "messages":[{"role":"user","content":"x"}], "stream":true,"big":%b, "id_slot": 1}' % big
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.request("POST", CHAT, b"content-type: application/json", body=body)
        await client.body()
        sent = fu.generations[0].body
    assert b'"big":' + big in sent
    assert "id_slot" not in orjson.loads(sent)
    assert orjson.loads(sent)["messages"] == [{"role": "user", "content": "x"}]


async def test_reasoning_and_content_in_one_chunk_leave_as_two_frames_reasoning_first() -> None:
    both = T("x").replace(b'"content":"x"', b'"reasoning_content":"think","content":"say"')
    fu = ScriptedUpstream(scripts={CHAT: stream(both, STOP, DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        chunks = data_of(await read_stream(gateway.url, CHAT, chat()))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"reasoning_content": "think"}, {"content": "say"}, {}]


async def test_a_usage_chunk_that_the_client_asked_for_passes() -> None:
    fu = ScriptedUpstream(scripts={CHAT: stream(T("a"), STOP, USE, DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat(stream_options={"include_usage": True}))
    assert data_of(frames)[-1]["usage"]["total_tokens"] == 5
    assert text_of(frames) == "a"


async def test_a_backend_that_states_no_counts_is_asked_for_them_and_the_client_sees_none() -> None:
    """The first stream shows that the backend states nothing.

    From the second stream on it is asked for counts.
    """
    scripts = iter([stream(T("a"), STOP, DONE), stream(T("a"), STOP, USE, DONE)])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        first = data_of(await read_stream(gateway.url, CHAT, chat()))
        second = data_of(await read_stream(gateway.url, CHAT, chat()))
        asked = [orjson.loads(request.body).get("stream_options") for request in fu.generations]
    assert asked == [None, {"include_usage": True}]
    assert [chunk["choices"] for chunk in second] == [chunk["choices"] for chunk in first]
    assert not any("usage" in chunk for chunk in second)


async def test_a_media_type_is_one_in_any_case() -> None:
    head = H.replace(b"text/event-stream", b"Text/Event-Stream; charset=utf-8")
    script: Script = [Write(head + chunked(T("a"), STOP, DONE) + END), Fin()]
    async with (
        ScriptedUpstream(scripts={CHAT: script}) as fu,
        running_gateway(settings_for(fu.url)) as gateway,
    ):
        assert text_of(await read_stream(gateway.url, CHAT, chat())) == "a"


async def test_scenario_047_every_frame_reaches_the_client_whatever_the_cuts_between_reads() -> None:
    """U+2028, emoji and CRLF line ends, one byte a write."""
    fu = ScriptedUpstream(scripts={CHAT: crlf_bytewise(T("a\u2028b"), T("안녕😀é"), STOP, DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert text_of(frames) == "a\u2028b안녕😀é"
    assert frames[-1].data == DONE


def crlf_bytewise(*events: bytes) -> Script:
    body = b"".join(events).replace(b"\n", b"\r\n")
    return [Write(H), *bytewise(b"".join(chunked(bytes([byte])) for byte in body)), Write(END), Fin()]


@pytest.mark.parametrize(
    "trace", [b"0" * 9000, "00-ü".encode(), b"00-zz"], ids=["long", "not ASCII", "words"]
)
async def test_trace_header_that_is_none_does_not_reach_the_backend(trace: bytes) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.post(CHAT, chat(), b"traceparent: " + trace)
        await client.body()
        assert client.status == 200
        assert b"traceparent" not in {name for name, _ in fu.generations[0].head.headers}
