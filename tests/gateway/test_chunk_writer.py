"""The short way of a frame to the socket is taken only where `send` would have come to the same bytes."""

import pytest

from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.script import Fin, Gate, Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


def halting(gate: Gate) -> Script:
    return [Write(H + chunked(T("a"))), Write(chunked(T("b"))), gate, Write(chunked(STOP, DONE) + END), Fin()]


async def test_frames_written_the_short_way_and_the_end_sent_the_long_way_make_one_body() -> None:
    gate = Gate()
    fu = ScriptedUpstream(scripts={CHAT: halting(gate)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.post(CHAT, chat())
        frames = client.frames()
        got = [(await anext(frames)).data for _ in range(2)]
        gate.event.set()
        got += [frame.data async for frame in frames]
        assert client.clean_end
        assert got[-1] == DONE
        assert [b'"a"' in got[0], b'"b"' in got[1]] == [True, True]
        await client.request("GET", "/health")
        assert client.status == 200, "the connection goes on"


async def test_http_1_0_gets_the_same_frames_without_chunks() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        chunked_frames = await read_stream(gateway.url, CHAT, chat(seed=1))
        async with await RawClient.connect(gateway.url) as client:
            await client.send(request_bytes("POST", CHAT, json=chat(seed=1), version="1.0"))
            head = await client.head()
            body = await client.body()
    assert head.get(b"transfer-encoding") is None
    assert body.count(b"data: ") == len(chunked_frames)
