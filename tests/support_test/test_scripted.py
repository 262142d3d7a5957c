"""The scripted upstream plays its scripts and records its clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.client import RawClient, read_stream
from tests.support.connection import ConnectionEnding
from tests.support.notation import DONE, END, STOP, USE, H, T, answer, chunked
from tests.support.script import (
    AwaitByte,
    Fin,
    Flood,
    Gate,
    Paced,
    Rst,
    Script,
    Sleep,
    Stall,
    Write,
    bytewise,
    cut,
    stream,
)
from tests.support.scripted import ScriptedUpstream, refusing_url
from tests.support.sse import index_of

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def playing(script: Script) -> ScriptedUpstream:
    return ScriptedUpstream(lambda _: script)


async def test_a_stream_arrives_byte_for_byte() -> None:
    events = [T("안녕하세요😀\u2028"), STOP, USE, DONE]
    async with playing(stream(*events)) as fu:
        frames = await read_stream(fu.url, CHAT, BODY)
        assert events == [frame.data for frame in frames]


async def test_a_request_is_recorded_as_its_bytes_were() -> None:
    async with playing(stream(DONE)) as fu, await RawClient.connect(fu.url) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw = head + chunked(b'{"a":', b"1}") + END
        await client.send(raw)
        await client.head()
        request = fu.requests[0]
        assert (raw, b'{"a":1}', {"a": 1}) == (request.raw, request.body, request.json())
        assert request.head.all(b"x-a") == [b"1", b"2"]


async def test_pieces_are_separate_reads() -> None:
    data = H + chunked(T("é")) + END
    async with playing([*cut(data, len(H), len(H) + 9), Fin()]) as fu:
        assert [T("é")] == [frame.data for frame in await read_stream(fu.url, CHAT, BODY)]
    async with playing([*bytewise(data), Fin()]) as fu:
        assert [T("é")] == [frame.data for frame in await read_stream(fu.url, CHAT, BODY)]
        assert len(data) == len(fu.requests[0].write_ns)


async def test_a_gate_holds_the_script() -> None:
    gate = Gate()
    async with (
        playing([Write(H + chunked(T("a"))), gate, Write(chunked(DONE) + END), Fin()]) as fu,
        await RawClient.connect(fu.url) as client,
    ):
        await client.post(CHAT, BODY)
        frames = client.frames()
        assert T("a") == (await anext(frames)).data
        assert not fu.requests[0].finished
        gate.event.set()
        assert (await anext(frames)).data == DONE


@pytest.mark.parametrize(("step", "whole"), [(Fin(), False), (Rst(), False), (Write(END), True)])
async def test_a_truncated_body_is_distinguished_from_a_complete_one(
    step: Fin | Rst | Write, whole: bool
) -> None:
    async with (
        playing([Write(H), Sleep(0), Write(chunked(T("a"))), Sleep(0.01), step]) as fu,
        await RawClient.connect(fu.url) as client,
    ):
        await client.post(CHAT, BODY)
        assert [T("a")] == [frame.data async for frame in client.frames()]
        assert client.clean_end is whole


async def test_the_upstream_sees_how_the_client_left() -> None:
    async with playing([Write(H), Stall()]) as fu:
        leaving = await RawClient.connect(fu.url)
        await leaving.post(CHAT, BODY)
        resetting = await RawClient.connect(fu.url)
        await resetting.post(CHAT, BODY)
        assert 2 == fu.open == fu.max_open
        leaving.close()
        resetting.reset()
        assert ConnectionEnding.EOF is await fu.connections[0].closed()
        assert ConnectionEnding.RESET is await fu.connections[1].closed()
        assert fu.open == 0
        assert fu.connections[0].ended_ns is not None


async def test_keep_alive_ends_when_the_next_request_begins() -> None:
    async with (
        playing([Write(answer(200, {})), AwaitByte(), Fin()]) as fu,
        await RawClient.connect(fu.url) as client,
    ):
        await client.post(CHAT, BODY)
        assert await client.json() == {}
        await client.send(b"P")
        assert await client.eof()


async def test_a_connection_is_kept_alive_for_the_next_request() -> None:
    async with playing([Write(answer(200, {}))]) as fu, await RawClient.connect(fu.url) as client:
        for _ in range(3):
            await client.post(CHAT, BODY)
            assert await client.json() == {}
        assert (len(fu.connections), len(fu.requests)) == (1, 3)


async def test_a_flood_is_stopped_by_a_reader_that_stops() -> None:
    async with playing([Write(H), Flood(200 << 20), Write(END)]) as fu:
        async with await RawClient.connect(fu.url, receive_buffer=65536) as client:
            await client.post(CHAT, BODY)
            client.stop_reading()
            request = fu.requests[0]
            await fu.until(lambda: not request.connection.writable)
            assert request.connection.delivered_bytes < 16 << 20
        assert isinstance(await fu.connections[0].closed(), ConnectionEnding)
        assert not request.finished


async def test_a_paced_stream_keeps_its_schedule_and_its_times() -> None:
    async with playing([Write(H), Paced(1000, 50), Write(END), Fin()]) as fu:
        frames = await read_stream(fu.url, CHAT, BODY)
        written = fu.requests[0].frame_ns
        assert list(range(50)) == [index_of(frame.data) for frame in frames]
        assert all(frame.at_ns > written[index] for index, frame in enumerate(frames))
        assert written[-1] - written[0] > 40_000_000


async def test_connect_hangs_while_the_backlog_is_full() -> None:
    async with ScriptedUpstream(accepting=False, backlog=0) as fu:
        waiting = [asyncio.ensure_future(RawClient.connect(fu.url)) for _ in range(4)]
        done, pending = await asyncio.wait(waiting, timeout=0.1)
        assert done
        assert pending
        for connecting in pending:
            connecting.cancel()
        await fu.accept()
        await fu.until(lambda: fu.connections)
        for connecting in done:
            connecting.result().close()


async def test_a_stopped_listener_refuses_and_comes_back_on_its_port() -> None:
    async with playing([Write(answer(200, {}))]) as fu:
        fu.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(fu.url)
        await fu.listen()
        async with await RawClient.connect(fu.url) as client:
            assert (await client.post(CHAT, BODY)).start_line == b"HTTP/1.1 200 OK"


async def test_a_refusing_port_refuses() -> None:
    with refusing_url() as url, pytest.raises(ConnectionRefusedError):
        await RawClient.connect(url)


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    async with ScriptedUpstream(lambda _: stream(DONE), uds=str(tmp_path / "s")) as fu:
        assert [frame.data for frame in await read_stream(fu.url, CHAT, BODY)] == [DONE]


async def test_broken_framing_fails_the_test() -> None:
    fu = ScriptedUpstream()
    await fu.listen()
    async with await RawClient.connect(fu.url) as client:
        await client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        await client.head()
    with pytest.raises(AssertionError, match="failed"):
        await fu.close()


async def test_an_unread_upload_stalls_the_client() -> None:
    async with ScriptedUpstream(reading=False) as fu, await RawClient.connect(fu.url) as client:
        sending = asyncio.ensure_future(client.request("POST", CHAT, body=bytes(64 << 20)))
        done, _ = await asyncio.wait({sending}, timeout=0.1)
        assert not done
        assert not fu.requests
        sending.cancel()


def test_scripts_run_on_the_plain_loop_too() -> None:
    async def main() -> None:
        async with playing([Rst()]) as fu, await RawClient.connect(fu.url) as client:
            with pytest.raises(ConnectionResetError):
                await client.post(CHAT, BODY)

    asyncio.run(main())
