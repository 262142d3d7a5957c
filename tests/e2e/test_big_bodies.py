"""Bodies of many megabytes pass unharmed, and streams of other clients go on meanwhile."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from pathlib import Path

import orjson
import pytest

from tests.support.answer import exchange
from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, answer, chunked
from tests.support.script import Fin, Paced, Script, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
JSON = b"content-type: application/json"
PICTURE = base64.b64encode(random.Random(16).randbytes(12 * MIB)).decode()
"""16 MiB."""
WHOLE: Script = [Write(answer(200, {"choices": []}))]


def with_picture(**members: object) -> bytes:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    question = {"type": "text", "text": 'what is "this"? \\ \u2028 \U0001f600'}
    return orjson.dumps({"messages": [{"role": "user", "content": [question, image]}], **members})


def posted(body: bytes, *headers: bytes) -> bytes:
    return request_bytes("POST", CHAT, JSON, *headers, body=body)


async def test_scenario_093_a_picture_of_16_mib_reaches_the_backend_as_it_was_sent() -> None:
    body = with_picture(model="m", stream=False)
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await exchange(gateway.url, posted(body), within=20)
        assert fu.generations[0].body == body
    assert got.status == 200


async def test_a_picture_in_chunks_and_under_another_name_loses_nothing_either() -> None:
    body = with_picture(model="public", stream=False, id_slot=3)
    head = request_bytes("POST", CHAT, JSON, b"transfer-encoding: chunked")
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu:
        backend = {"name": "gpu0", "url": fu.url, "models": ["public"]}
        models = [{"name": "public", "upstream_name": "theirs"}]
        async with running_gateway(settings_for(backend=[backend], model=models)) as gateway:
            pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
            got = await exchange(gateway.url, head + chunked(*pieces) + END, within=20)
        sent = fu.generations[0].json()
    assert got.status == 200
    assert sent == {**orjson.loads(with_picture(stream=False)), "model": "theirs"}


async def test_an_answer_may_be_of_any_size() -> None:
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": PICTURE}}]}
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, said))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await exchange(gateway.url, request_bytes("POST", CHAT, json=chat(stream=False)), within=20)
    assert got.json["choices"] == said["choices"]


STREAMS, RATE = 20, 50
BIG: dict[str, tuple[bytes, int]] = {
    "a picture": (with_picture(), 200),
    "invalid at its last byte": (with_picture()[:-1] + b"]", 400),
    "deep": (b'{"messages":' + b"[" * 4 * MIB, 400),
    "many messages": (
        orjson.dumps({"messages": [{"role": "user", "content": "x" * 200}] * (4 * MIB // 230)}),
        200,
    ),
}


def script(request: ReceivedRequest) -> Script:
    if b'"stream":true' not in request.body[-200:]:
        return WHOLE
    return [Write(H), Paced(RATE), Write(chunked(STOP, DONE) + END), Fin()]


@pytest.mark.slow
async def test_scenario_106_streams_go_on_while_big_bodies_come_in(tmp_path: Path) -> None:
    """Three bodies of a kind come at once.

    The limit is far above the measured times, and far below the times that users report.
    """
    fu = ScriptedUpstream(script, llama=LlamaLike(STREAMS + 4))
    async with fu, served_gateway(tmp_path, backend_table(fu.url)) as served:
        arrivals: list[list[int]] = [[] for _ in range(STREAMS)]
        readers = [asyncio.create_task(note(served.url, times)) for times in arrivals]
        while not all(arrivals):
            await asyncio.sleep(0.01)
        for body, status in BIG.values():
            posts = [exchange(served.url, posted(body), within=20) for _ in range(3)]
            health = exchange(served.url, request_bytes("GET", "/health"))
            *answers, alive = await asyncio.gather(*posts, health)
            assert [got.status for got in answers] == [status] * 3
            assert alive.status == 200
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
    gaps = [after - before for times in arrivals for before, after in itertools.pairwise(times)]
    print(f"longest pause of a stream: {max(gaps) / 1e6:.0f} ms")
    assert max(gaps) < 1e9


async def note(url: str, times: list[int]) -> None:
    async with await RawClient.connect(url) as client:
        await client.post(CHAT, chat())
        async for frame in client.frames():
            times += [frame.at_ns]
