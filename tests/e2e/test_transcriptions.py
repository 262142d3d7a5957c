"""Audio: a form is forwarded in pieces, and its answer comes as JSON, as text, or as a stream."""

from __future__ import annotations

import pytest

from tests.support.answer import WholeResponse, exchange
from tests.support.client import RawClient, request_bytes
from tests.support.endpoints import BOUNDARY, MODEL, TEXT, WAYS, chunks_of
from tests.support.gateway import running_gateway, settings_for
from tests.support.notation import DONE, END, answer, chunked, error_body
from tests.support.script import Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

[WAY] = [way for way in WAYS if way.endpoint.multipart]
FORM = b"content-type: multipart/form-data; boundary=" + BOUNDARY
WHOLE = [Write(answer(200, WAY.sample.whole))]


def part(name: str, value: bytes, more: bytes = b"") -> bytes:
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n' % (BOUNDARY, name.encode(), more)
    return head + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--%b--\r\n" % BOUNDARY


SOUND = part("file", bytes(range(256)) * 1000, b'; filename="a.wav"')


async def post(url: str, body: bytes) -> WholeResponse:
    return await exchange(url, request_bytes("POST", WAY.path, FORM, body=body))


async def test_a_form_reaches_the_backend_byte_for_byte() -> None:
    fu = ScriptedUpstream(scripts={WAY.path: WHOLE})
    body = form(part("model", b"m"), SOUND, part("temperature", b"0.5"))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await post(gateway.url, body)
        [request] = fu.generations
    assert (got.status, got.json["text"]) == (200, TEXT)
    assert request.body == body
    assert request.head.get(b"content-type") == FORM.partition(b": ")[2]
    assert request.head.get(b"content-length") == b"%d" % len(body)


async def test_a_chunked_form_has_a_length_behind_the_gateway_and_its_model_is_replaced() -> None:
    models = [{"name": "m", "upstream_name": "its-own-longer-name"}]
    fu = ScriptedUpstream(scripts={WAY.path: WHOLE})
    body = form(SOUND, part("model", b"m"), part("language", b"en"))
    async with fu, running_gateway(settings_for(fu.url, model=models)) as gateway:
        async with await RawClient.connect(gateway.url) as client:
            await client.send(request_bytes("POST", WAY.path, FORM, b"transfer-encoding: chunked"))
            for at in range(0, len(body), 10_007):
                await client.send(chunked(body[at : at + 10_007]))
            await client.send(END)
            await client.head()
            assert client.status == 200
        [request] = fu.generations
    assert request.body == form(SOUND, part("model", b"its-own-longer-name"), part("language", b"en"))


async def test_an_answer_in_plain_text_passes_as_it_is() -> None:
    said = answer(200, "grüße\n".encode(), content_type=b"text/plain; charset=utf-8")
    fu = ScriptedUpstream(scripts={WAY.path: [Write(said)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await post(gateway.url, form(SOUND, part("response_format", b"text")))
    assert (got.status, got.body.decode()) == (200, "grüße\n")
    assert got.header(b"content-type") == b"text/plain; charset=utf-8"


async def test_a_stream_of_deltas_ends_with_its_sentinel() -> None:
    fu = ScriptedUpstream(scripts={WAY.path: WAY.script()})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await WAY.frames(gateway.url)
        [line] = gateway.log.of("request")
    *deltas, done = chunks_of(frames)
    assert "".join(chunk["delta"] for chunk in deltas) == TEXT
    assert (done["type"], done["text"]) == ("transcript.text.done", TEXT)
    assert frames[-1].data == DONE
    assert (line["prompt_tokens"], line["completion_tokens"]) == (31, 2)


async def test_a_model_without_ears_says_so_in_the_backends_words() -> None:
    said = error_body(501, "The current model does not support audio input.", "not_supported_error")
    fu = ScriptedUpstream(scripts={WAY.path: [Write(answer(501, said))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await post(gateway.url, form(SOUND))
    assert (got.status, got.error["type"]) == (501, "not_supported_error")
    assert MODEL not in got.error["message"]


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([part("model", b"m"), part("model", b"m")], "model"),
        ([part("stream", b"true"), part("stream", b"true")], "stream"),
        ([part("max_tokens", b"many")], "max_tokens"),
    ],
)
async def test_a_field_that_is_not_clear_is_refused_and_named(parts: list[bytes], param: str) -> None:
    fu = ScriptedUpstream(scripts={WAY.path: WHOLE})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await post(gateway.url, form(SOUND, *parts))
        assert fu.generations == []
    assert (got.status, got.error["param"]) == (400, param)


async def test_a_body_that_is_no_form_is_refused() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        as_json = await exchange(gateway.url, request_bytes("POST", WAY.path, json={"model": "m"}))
        cut = await post(gateway.url, form(SOUND)[:-20])
    assert (as_json.status, as_json.error["param"]) == (400, "content-type")
    assert (cut.status, cut.error["code"]) == (400, "invalid_request")
