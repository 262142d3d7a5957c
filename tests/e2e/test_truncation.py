"""Scenario 56: a backend that dies is never relayed as a clean end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import read_stream
from tests.support.gateway import CHAT, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.notation import DONE, END, PING, STOP, H, T, answer, chunked
from tests.support.script import Fin, Rst, Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

TRUNCATED = "upstream_truncated"
BROKEN = "upstream_broken"
HALF = T("a")[:40]
MESSAGE = "upstream closed the stream before it finished"
UNCHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
TO_EOF = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

ENDS: dict[str, tuple[Callable[[bytes], Script], str]] = {
    "FIN without final chunk": (lambda said: [Write(H + chunked(said)), Fin()], TRUNCATED),
    "RST": (lambda said: [Write(H + chunked(said)), Rst()], TRUNCATED),
    "FIN inside a chunk": (lambda said: [Write(H + chunked(said)[:-3]), Fin()], TRUNCATED),
    "FIN inside an event": (lambda said: [Write(H + chunked(said, HALF)), Fin()], TRUNCATED),
    "bad chunk header": (lambda said: [Write(H + chunked(said) + b"zz\r\n"), Fin()], BROKEN),
    "final chunk, no sentinel": (lambda said: [Write(H + chunked(said) + END), Fin()], TRUNCATED),
    "final chunk inside an event": (lambda said: [Write(H + chunked(said, HALF) + END), Fin()], TRUNCATED),
    "finish reason, no sentinel": (lambda said: [Write(H + chunked(said, STOP) + END), Fin()], TRUNCATED),
    "content-length not reached": (lambda said: [Write(UNCHUNKED + said), Fin()], TRUNCATED),
    "no length, no sentinel": (lambda said: [Write(TO_EOF + said), Fin()], TRUNCATED),
}


@pytest.mark.parametrize("end", ENDS)
async def test_after_some_text_the_end_is_one_framed_error(end: str) -> None:
    script, code = ENDS[end]
    fu = ScriptedUpstream(scripts={CHAT: script(T("a") + T("b"))})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
        pool = gateway.fleet.backends["gpu0"].pool
        assert len(pool.quarantine) == 1
        [line] = gateway.log.of("request")
    assert text_of(frames) == "ab"
    error = error_in(frames)
    assert (error["type"], error["code"]) == ("upstream_error", code)
    if code == TRUNCATED:
        assert error["message"] == MESSAGE
    assert (line["status"], line["outcome"], line["code"]) == (200, "error", code)


@pytest.mark.parametrize("end", [end for end in ENDS if not end.startswith("finish")])
async def test_before_any_event_the_end_is_502(end: str) -> None:
    script, code = ENDS[end]
    fu = ScriptedUpstream(scripts={CHAT: script(PING)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url)
    assert (got.status, got.error["code"]) == (502, code)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([Fin()], TRUNCATED),
        ([Rst()], TRUNCATED),
        ([Write(b"HTTP/1.1 200 OK\r\nContent-Le"), Fin()], TRUNCATED),
        ([Write(b"220 ready for mail\r\n"), Fin()], BROKEN),
    ],
    ids=["FIN", "RST", "half a head", "no HTTP"],
)
async def test_an_end_before_headers_is_502_and_the_request_is_not_sent_again(
    script: Script, code: str, *, streaming: bool
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
        assert len(fu.generations) == 1
    assert (got.status, got.error["code"]) == (502, code)


WHOLE = answer(200, {"choices": []})
WHOLE_ENDS: dict[str, tuple[Script, str]] = {
    "short of its length": ([Write(WHOLE[:-2]), Fin()], TRUNCATED),
    "reset": ([Write(WHOLE[:-2]), Rst()], TRUNCATED),
    "a chunk short": ([Write(H + chunked(b'{"choices":[]}')), Fin()], TRUNCATED),
    "bad chunk header": ([Write(H + chunked(b'{"choices":') + b"zz\r\n"), Fin()], BROKEN),
    "no JSON": ([Write(answer(200, b"<html>"))], BROKEN),
    "no object": ([Write(answer(200, b"[]"))], BROKEN),
    "a stream": ([Write(H + chunked(T("a"), STOP, DONE) + END), Fin()], BROKEN),
}


@pytest.mark.parametrize("end", WHOLE_ENDS)
async def test_a_whole_answer_that_is_not_whole_is_502(end: str) -> None:
    script, code = WHOLE_ENDS[end]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
        assert len(fu.generations) == 1
    assert (got.status, got.error["code"]) == (502, code)


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b"<html>"])
async def test_a_whole_answer_to_a_streaming_request_is_502(body: bytes) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, body))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url)
    assert (got.status, got.error["code"]) == (502, BROKEN)
