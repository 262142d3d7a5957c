"""A client reads each token once and in order, whatever it does and whatever else is sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from slotgate.gateway.http.errors import ClientGone, UpstreamError
from tests.gateway.streaming.test_fast_path import chunk, event
from tests.support.in_memory_stream import CHUNKED, InMemoryClient, InMemoryStream
from tests.support.notation import DONE, END
from tests.support.sse import FrameReader, text_of
from tests.support.virtual_time import run_virtual


class SlowClient(InMemoryClient):
    """Its `send` waits as uvicorn's does, and no direct write is allowed while it waits."""

    def __init__(self, *, keep: bool, taken: Callable[[bytes], object] | None = None) -> None:
        super().__init__(keep=keep, taken=taken)
        self.keeps_up = asyncio.Event()
        self.keeps_up.set()

    def pause(self) -> None:
        self.keeps_up.clear()
        super().pause()

    def resume(self) -> None:
        self.keeps_up.set()
        super().resume()

    async def send(self, message: Message) -> None:
        if self.write_paused:
            await self.keeps_up.wait()
        await super().send(message)

    def _transport_write(self, chunk: bytes) -> None:
        assert not self.write_paused
        super()._transport_write(chunk)


Act = Callable[[InMemoryStream, str], object]


def read(*texts: str) -> Act:
    return lambda stream, number: stream.read(b"".join(chunk(event(number + text)) for text in texts))


def read_in_two(stream: InMemoryStream, number: str) -> None:
    whole = chunk(event(number))
    stream.read(whole[:40])
    stream.read(whole[40:])


def keep_alive(stream: InMemoryStream, _: str) -> None:
    stream.out.put(b": keep-alive\n\n")
    stream.out.wake()


TOKENS: list[Act] = [read(""), read(""), read(""), read("é"), read("", "+"), read_in_two]
OTHERS: list[Act] = [
    lambda stream, _: stream.client.pause(),
    lambda stream, _: stream.client.resume(),
    lambda stream, _: stream.read(chunk(b": ping\n\n")),
    keep_alive,
]


def succeed(stream: InMemoryStream) -> None:
    stream.read(chunk(DONE))
    stream.read(chunk(event("late")))
    stream.read(END)


def leave(stream: InMemoryStream) -> None:
    stream.client.leave()
    stream.watch.stop()


ENDS: dict[str, Callable[[InMemoryStream], object]] = {
    "a success": succeed,
    "a cut": lambda stream: stream.connection.connection_lost(None),
    "a timeout": lambda stream: stream.relay.fail(UpstreamError("idle_timeout", "silence")),
    "a client that leaves": leave,
}


@pytest.mark.parametrize("end", ENDS)
@given(st.lists(st.tuples(st.sampled_from([*TOKENS, *OTHERS]), st.integers(0, 2)), max_size=40))
def test_every_token_is_read_once_and_in_order(end: str, acts: list[tuple[Act, int]]) -> None:
    async def main() -> str:
        async with InMemoryStream(keep=True, client=SlowClient) as stream:
            stream.read(CHUNKED)
            for number, (act, turns) in enumerate(acts):
                act(stream, f" {number}")
                for _ in range(turns):
                    await asyncio.sleep(0)
            ENDS[end](stream)
            stream.read(chunk(event("late")))
            stream.client.resume()
            with contextlib.suppress(ClientGone):
                await stream.pump
        frames = FrameReader()
        said = [text_of(frame) or "" for frame in frames.feed(stream.client.body)]
        assert not frames.rest
        return "".join(said)

    texts = {read_in_two: [""], **dict(zip(TOKENS, ([""], [""], [""], ["é"], ["", "+"]), strict=False))}
    generated = "".join(
        f" {number}{text}" for number, (act, _) in enumerate(acts) for text in texts.get(act, ())
    )
    said = run_virtual(main())
    assert said == generated if end != "a client that leaves" else generated.startswith(said)
