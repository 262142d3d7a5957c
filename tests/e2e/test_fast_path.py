"""The fast path over real sockets: every token arrives once, in its own answer, and none after the end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotgate.gateway.server.connection import ClientConnection
from slotgate.gateway.streaming.fast_path import FastPath
from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, chat, error_in, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.script import Fin, Flood, Paced, Script, Stall, Step, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = pytest.mark.anyio

TOKENS = 60
SAID = "".join(f" {number}" for number in range(TOKENS))
KEY = b"x-slotgate-supersede: editor"


class FastPathCount:
    def __init__(self) -> None:
        self.taken = 0


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[FastPathCount]:
    """Counts the tokens on the fast path: a test in which there are none proves nothing."""
    watched = FastPathCount()
    take = FastPath.take

    def counted(fast_path: FastPath, read: bytes) -> bool:
        taken = take(fast_path, read)
        watched.taken += taken
        return taken

    monkeypatch.setattr(FastPath, "take", counted)
    yield watched
    assert watched.taken


def flowing(*then: Step, count: int = TOKENS) -> Script:
    return [Write(H), Paced(1000, count=count), *then]


END_OF_ALL: Script = [Write(chunked(STOP, DONE) + END), Fin()]
WHOLE = flowing(*END_OF_ALL)


def named(request: ReceivedRequest) -> Script:
    """Tokens that name their request."""
    name = request.json()["name"]
    tokens = Paced(1000, count=TOKENS, frame=lambda number: T(f" {name}{number}"))
    return [Write(H), tokens, *END_OF_ALL]


def said_by(name: str) -> str:
    return "".join(f" {name}{number}" for number in range(TOKENS))


async def test_each_pipelined_request_gets_its_own_tokens() -> None:
    names = ["a", "b", "c"]
    fu = ScriptedUpstream(named)
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.send(b"".join(request_bytes("POST", CHAT, json=chat(name=name)) for name in names))
        for name in names:
            await client.head()
            assert text_of([frame async for frame in client.frames()]) == said_by(name)


async def test_each_concurrent_stream_gets_its_own_tokens() -> None:
    names = [chr(number) for number in range(97, 117)]
    fu = ScriptedUpstream(named, llama=LlamaLike(len(names)))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:

        async def said(name: str) -> str:
            async with await gateway.client() as client:
                await client.post(CHAT, chat(name=name))
                return text_of([frame async for frame in client.frames()])

        assert await asyncio.gather(*map(said, names)) == list(map(said_by, names))


async def test_garbage_after_a_request_does_not_get_into_its_tokens() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.send(request_bytes("POST", CHAT, json=chat()) + b"\x00garbage\r\n\r\n")
        await client.head()
        frames = [frame async for frame in client.frames()]
        assert [text_of(frames), frames[-1].data, client.clean_end] == [SAID, DONE, True]


async def test_a_superseded_stream_ends_with_its_error_and_no_token_follows() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2))
    scripts = iter([flowing(Stall(), count=100_000), WHOLE])
    fu.scripts[CHAT] = lambda _: next(scripts)
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as first:
        await first.post(CHAT, chat(), KEY)
        frames = first.frames()
        got = [await anext(frames) for _ in range(TOKENS)]
        async with await gateway.client() as second:
            await second.post(CHAT, chat(), KEY)
            assert text_of([frame async for frame in second.frames()]) == SAID
        got += [frame async for frame in frames]
        said = text_of(got)
        assert said == "".join(f" {number}" for number in range(len(said.split())))
        assert error_in(got)["code"] == "superseded"


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset, RawClient.half_close])
async def test_a_client_that_leaves_between_tokens_ends_the_generation(
    leave: Callable[[RawClient], None],
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: flowing(Stall(), count=100_000)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway, await gateway.client() as client:
        await client.post(CHAT, chat())
        frames = client.frames()
        for _ in range(TOKENS):
            await anext(frames)
        leave(client)
        await fu.until(lambda: not fu.generations[0].connection.is_open)


@pytest.mark.slow
async def test_a_client_that_pauses_and_resumes_reads_every_token_once(
    watched: FastPathCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection buffers little, so the direct writer is shut and opened again and again."""
    shut = 0
    made, pause = ClientConnection.connection_made, ClientConnection.pause_writing

    def made_small(protocol: ClientConnection, transport: asyncio.Transport) -> None:
        made(protocol, transport)
        transport.set_write_buffer_limits(high=2000)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)

    def paused(protocol: ClientConnection) -> None:
        nonlocal shut
        shut += 1
        pause(protocol)

    monkeypatch.setattr(ClientConnection, "connection_made", made_small)
    monkeypatch.setattr(ClientConnection, "pause_writing", paused)
    fu = ScriptedUpstream(scripts={CHAT: flowing(*END_OF_ALL, count=1000)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.post(CHAT, chat())
            got = []
            async for frame in client.frames():
                got.append(frame)
                if len(got) % 100 == 0:
                    client.stop_reading()
                    await asyncio.sleep(0.1)
                    client.resume_reading()
    assert text_of(got) == "".join(f" {number}" for number in range(1000))
    assert shut > 2
    assert watched.taken > 100


async def test_a_stream_after_an_unread_answer_is_complete() -> None:
    """The connection is full when the head of the second answer is written."""
    big: Script = [Write(H), Flood(4_000_000, T("x" * 100)), *END_OF_ALL]
    scripts = iter([big, WHOLE])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        async with await gateway.client(receive_buffer=4096) as client:
            await client.send(request_bytes("POST", CHAT, json=chat()) * 2)
            await client.head()
            client.stop_reading()
            await gateway.until(lambda: gateway.scheduler.leases == 0)
            client.resume_reading()
            assert [frame.data async for frame in client.frames()][-1] == DONE
            await client.head()
            assert text_of([frame async for frame in client.frames()]) == SAID


@pytest.mark.slow
async def test_a_running_stream_is_completed_after_sigterm(watched: FastPathCount, tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: flowing(*END_OF_ALL, count=500)})
    async with fu, served_gateway(tmp_path, backend_table(fu.url)) as served:
        async with await served.client() as client:
            await client.post(CHAT, chat())
            frames = client.frames()
            got = [await anext(frames) for _ in range(20)]
            served.process.send_signal(signal.SIGTERM)
            got += [frame async for frame in frames]
        assert text_of(got) == "".join(f" {number}" for number in range(500))
        assert await served.exit_code() == 0
    watched.taken += 1  # in another process
