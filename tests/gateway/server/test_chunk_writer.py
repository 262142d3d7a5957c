"""Direct writes happen only if `send` would write the same bytes."""

from __future__ import annotations

import pytest

from slotgate.gateway.server.connection import ClientConnection
from slotgate.gateway.streaming.deadlines import Deadlines
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.gateway import CHAT, chat, running_gateway, settings_for
from tests.support.in_memory_stream import InMemoryClient
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.script import Fin, Gate, Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


def halting(gate: Gate) -> Script:
    return [Write(H + chunked(T("a"))), Write(chunked(T("b"))), gate, Write(chunked(STOP, DONE) + END), Fin()]


async def test_direct_writes_and_the_end_by_send_make_one_body() -> None:
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


async def test_direct_writes_are_forbidden_while_a_client_is_behind_and_once_it_is_gone() -> None:
    fu = ScriptedUpstream(scripts={CHAT: halting(Gate())})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with await gateway.client() as client:
            await client.post(CHAT, chat())
            frames = client.frames()
            assert [(await anext(frames)).data for _ in range(2)]
            [protocol] = gateway.server.connections.connections
            assert isinstance(protocol, ClientConnection)
            writer = protocol.writer
            assert writer is not None
            clear = [writer.now is not None]
            for change in (protocol.pause_writing, protocol.resume_writing, protocol.eof_received):
                change()
                clear.append(writer.now is not None)
            assert clear == [True, False, True, False], "at once"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write_paused", True),
        ("disconnected", True),
        ("response_complete", True),
        ("chunked_encoding", None),
        ("chunked_encoding", False),
    ],
)
async def test_each_of_these_conditions_forbids_direct_writes(name: str, value: bool | None) -> None:
    client = InMemoryClient(keep=True)
    client.writer.open()
    before = client.writer.now
    setattr(client, name, value)
    client.writer.judge()
    assert [before is None, client.writer.now is None] == [False, True]
    assert not client.writer.piece(b"a")
    assert client.kept == []


async def test_the_deadlines_are_told_of_the_first_event_only(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Deadlines] = []
    begin = Deadlines.begin

    def noted(watchdog: Deadlines) -> None:
        begun.append(watchdog)
        begin(watchdog)

    monkeypatch.setattr(Deadlines, "begin", noted)
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        await read_stream(gateway.url, CHAT, chat(seed=1))
    assert len(begun) == 1
