"""The recording of a response is bounded, for slow clients and for endless answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.types import Message

from slotgate.gateway.testing.cassette import Ending, RecordedRequest
from slotgate.gateway.testing.cassette.redaction import Redaction
from slotgate.gateway.testing.cassette.response_recording import (
    MAX_BEHIND_BYTES,
    MAX_KEPT_BYTES,
    ResponseRecording,
)
from slotgate.gateway.upstream import End, UpstreamExchange

pytestmark = pytest.mark.anyio

MIB = bytes(1024 * 1024)


HeaderPairs = tuple[tuple[bytes, bytes], ...]


class PausableConnection:
    """An upstream connection that only notes whether it is paused."""

    def __init__(self) -> None:
        self.states = ["reading"]

    def pause(self) -> None:
        self.states.append("paused")

    def resume(self) -> None:
        self.states.append("reading")


def taken(
    connection: PausableConnection, *, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ResponseRecording:
    recording = ResponseRecording()
    recording.sent_on(cast("UpstreamExchange", connection))
    recording.head(200, list(headers))
    return recording


def read(recording: ResponseRecording, *pieces: bytes) -> None:
    for piece in pieces:
        recording.body(piece)
    recording.read_over()


async def test_the_upstream_is_paused_while_the_client_is_far_behind() -> None:
    connection = PausableConnection()
    recording = taken(connection)
    sent: list[Message] = []
    gate = asyncio.Event()

    async def send(message: Message) -> None:
        await gate.wait()
        sent.append(message)

    relaying = asyncio.create_task(recording.relay(send))
    for _ in range(MAX_BEHIND_BYTES // len(MIB)):
        read(recording, MIB)
    assert connection.states[-1] == "reading"
    read(recording, MIB)
    assert connection.states[-1] == "paused"
    gate.set()
    async with asyncio.timeout(5):
        while connection.states[-1] == "paused":
            await asyncio.sleep(0)
    recording.ended(End.COMPLETE)
    await relaying
    assert sum(len(message.get("body", b"")) for message in sent) == MAX_BEHIND_BYTES + len(MIB)
    assert not sent[-1].get("more_body", False)


async def test_an_answer_that_is_too_long_is_relayed_and_not_kept() -> None:
    recording = taken(PausableConnection())
    lengths: list[int] = []

    async def send(message: Message) -> None:
        lengths.append(len(message.get("body", b"")))

    relaying = asyncio.create_task(recording.relay(send))
    count = MAX_KEPT_BYTES // len(MIB) + 1
    for _ in range(count):
        assert not recording.too_long
        read(recording, MIB)
        await asyncio.sleep(0)
    recording.ended(End.COMPLETE)
    await relaying
    assert recording.too_long
    assert sum(lengths) == count * len(MIB)


@pytest.mark.parametrize(
    ("end", "headers", "ending"),
    [
        (End.COMPLETE, ((b"content-length", b"1"),), Ending.COMPLETE),
        (End.CUT_SHORT, ((b"content-length", b"9"),), Ending.CUT_SHORT),
        (End.CUT_SHORT, ((b"transfer-encoding", b"chunked"),), Ending.CUT_SHORT),
        (End.CUT_SHORT, (), Ending.COMPLETE),
        (End.BROKEN, (), Ending.CUT_SHORT),
        (End.CLOSED, (), Ending.ABANDONED),
    ],
)
async def test_the_ending_of_a_response_is_recorded(end: End, headers: Any, ending: Ending) -> None:  # noqa: ANN401
    recording = taken(PausableConnection(), headers=headers)
    read(recording, b"a", b"b")
    recording.ended(end)
    kept = recording.exchange(RecordedRequest("GET", "/"), Redaction()).response
    assert kept.ending is ending
    assert [each.data for each in kept.reads] == [b"ab"]  # one read, even if it brought several pieces
