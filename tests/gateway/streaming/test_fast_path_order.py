"""Whatever a client does, and whatever else there is to send: it reads each token once, in their order."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from bench.line import CHUNKED, Client, Line
from slotgate.gateway.http.errors import ClientGone, UpstreamError
from tests.gateway.streaming.test_fast_path import chunk, event
from tests.support.notation import DONE, END
from tests.support.sse import FrameReader, text_of
from tests.support.virtual_time import run_virtual


class SlowClient(Client):
    """Its `send` waits as uvicorn's does, and nothing may be written past it."""

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


Act = Callable[[Line, str], object]


def read(*texts: str) -> Act:
    return lambda line, number: line.read(b"".join(chunk(event(number + text)) for text in texts))


def read_in_two(line: Line, number: str) -> None:
    whole = chunk(event(number))
    line.read(whole[:40])
    line.read(whole[40:])


def keep_alive(line: Line, _: str) -> None:
    line.out.put(b": keep-alive\n\n")
    line.out.wake()


TOKENS: list[Act] = [read(""), read(""), read(""), read("é"), read("", "+"), read_in_two]
OTHERS: list[Act] = [
    lambda line, _: line.client.pause(),
    lambda line, _: line.client.resume(),
    lambda line, _: line.read(chunk(b": ping\n\n")),
    keep_alive,
]


def succeed(line: Line) -> None:
    line.read(chunk(DONE))
    line.read(chunk(event("late")))
    line.read(END)


def leave(line: Line) -> None:
    line.client.leave()
    line.out.stop()


ENDS: dict[str, Callable[[Line], object]] = {
    "a success": succeed,
    "a cut": lambda line: line.connection.connection_lost(None),
    "a timeout": lambda line: line.relay.fail(UpstreamError("idle_timeout", "silence")),
    "a client that leaves": leave,
}


@pytest.mark.parametrize("end", ENDS)
@given(st.lists(st.tuples(st.sampled_from([*TOKENS, *OTHERS]), st.integers(0, 2)), max_size=40))
def test_every_token_is_read_once_and_in_its_order(end: str, acts: list[tuple[Act, int]]) -> None:
    async def main() -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bench.line.Client", SlowClient)
            line = Line(keep=True)
        async with line:
            line.read(CHUNKED)
            for number, (act, turns) in enumerate(acts):
                act(line, f" {number}")
                for _ in range(turns):
                    await asyncio.sleep(0)
            ENDS[end](line)
            line.read(chunk(event("late")))
            line.client.resume()
            with contextlib.suppress(ClientGone):
                await line.pump
        frames = FrameReader()
        said = [text_of(frame) or "" for frame in frames.feed(line.client.body)]
        assert not frames.rest
        return "".join(said)

    texts = {read_in_two: [""], **dict(zip(TOKENS, ([""], [""], [""], ["é"], ["", "+"]), strict=False))}
    generated = "".join(
        f" {number}{text}" for number, (act, _) in enumerate(acts) for text in texts.get(act, ())
    )
    said = run_virtual(main())
    assert said == generated if end != "a client that leaves" else generated.startswith(said)
