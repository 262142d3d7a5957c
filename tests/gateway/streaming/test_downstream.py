"""The client's side: whole frames, few sends, a bounded buffer, and exactly one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import ChatDialect, FrameOptions
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.streaming.buffer_budget import GUARANTEED_BYTES, BufferBudget
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.template import Template
from tests.support.chat_chunks import PLAIN
from tests.support.pulse import Pulse
from tests.support.sse import FrameReader, text_of
from tests.support.virtual_time import run_virtual

HEADERS = [(b"content-type", b"text/event-stream")]


def template(kind: str) -> Template:
    payload = PLAIN.chunk({kind: "hello"})
    learnt = Template.learn(
        payload,
        orjson.loads(payload),
        ChatDialect(Identity("ours", 1, "public"), TokenUsage(), FrameOptions()),
    )
    assert learnt is not None
    return learnt


CONTENT, REASONING = template("content"), template("reasoning")


class SteppedClient:
    """Keeps the messages that it is sent. While `reading` is False, each `send` waits.

    `put` and `delta` do what the read callback of an upstream does: they put, then hand over.
    """

    def __init__(self, *, limit: int = 1 << 20, merge: bool = True) -> None:
        self.messages: list[Message] = []
        self.reading = True
        self.failing = b"no such frame"
        self.failing_later = False
        self.pulse = Pulse()
        self.budget = BufferBudget(1 << 30)
        self.stopped = False
        self.stalls = 0
        self.out = Downstream(
            self._send,
            asyncio.get_running_loop(),
            self,
            headers=lambda: HEADERS,
            buffer_limit=limit,
            budget=self.budget,
            tenant="team-a",
            merge=merge,
        )

    @property
    def bodies(self) -> list[bytes]:
        return [m["body"] for m in self.messages if m["type"] == "http.response.body"]

    @property
    def texts(self) -> list[str | None]:
        return [text_of(frame) for frame in FrameReader().feed(b"".join(self.bodies))]

    def put(self, *frames: bytes) -> None:
        for frame in frames:
            self.out.put(frame)
        self.out.hand_over()

    def delta(self, template: Template, *texts: bytes) -> None:
        for text in texts:
            self.out.delta(template, text)
        self.out.hand_over()

    def read_on(self) -> None:
        self.reading = True
        self.pulse.beat()

    def stop(self) -> None:
        """End the request, as a client does that leaves."""
        self.stopped = True
        self.out.wake()

    def stall(self) -> None:
        self.stalls += 1

    async def behind(self) -> None:
        """Return when a `send` waits."""
        await self.pulse.until(lambda: self.out.sending_since is not None, self, within=1)

    async def _send(self, message: Message) -> None:
        if message.get("body") == self.failing:
            raise RuntimeError("the transport is closed")
        self.messages.append(message)
        self.pulse.beat()
        while not self.reading and message["type"] == "http.response.body":
            await self.pulse.next()
        if self.failing_later:
            raise RuntimeError("the transport was closed")


class RecordedSource:
    """Notes when it is paused and resumed, and how much is unread then."""

    def __init__(self, client: SteppedClient) -> None:
        self.calls: list[str] = []
        self.unread: list[int] = []
        self._client = client

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")
        self.unread.append(self._client.out.unread)


@asynccontextmanager
async def pumping(client: SteppedClient, source: RecordedSource | None = None) -> AsyncIterator[None]:
    """Run the request's task. The end of the block waits until everything is sent and the body has ended."""

    async def serve() -> None:
        await client.out.pump(lambda: over, source)
        await client.out.end()

    over = False
    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    yield
    over = True
    client.read_on()
    client.out.close()
    await task


def test_the_first_frame_commits_the_response() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.out.wake()
            await asyncio.sleep(1)
            assert (client.out.committed, client.messages) == (False, [])
            client.put(b": a\n\n")
            assert client.out.committed
        start, *bodies = client.messages
        assert start == {"type": "http.response.start", "status": 200, "headers": HEADERS}
        assert client.bodies == [b": a\n\n", b""]
        assert [body["more_body"] for body in bodies] == [True, False]

    run_virtual(main())


def test_a_response_that_was_not_begun_is_not_ended() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            pass
        assert (client.messages, client.out.complete) == ([], False)

    run_virtual(main())


def test_frames_are_sent_as_they_come() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            for number in range(3):
                client.put(b": %d\n\n" % number)
                await asyncio.sleep(0.001)
                assert number + 1 == len(client.bodies)

    run_virtual(main())


def test_a_frame_is_sent_within_the_callback_that_put_it() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.put(b": a\n\n")
            await asyncio.sleep(0)
            client.put(b": b\n\n", b": c\n\n")
            assert client.bodies == [b": a\n\n", b": b\n\n: c\n\n"]

    run_virtual(main())


def test_a_large_read_is_sent_completely_without_another_read() -> None:
    async def main() -> None:
        client = SteppedClient(limit=100)
        source = RecordedSource(client)
        calls = source.calls
        async with pumping(client, source):
            client.put(b": a\n\n")
            await asyncio.sleep(0)
            client.put(*[b"." * 50_000] * 5)
            await asyncio.sleep(1)
            assert sum(map(len, client.bodies)) == 250_005
            assert calls == ["pause", "resume"]
            client.put(b"." * 101)
            await asyncio.sleep(1)
            assert calls == ["pause", "resume"] * 2

    run_virtual(main())


def test_waiting_frames_are_sent_together() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.reading = False
            client.put(b": first\n\n")
            await client.behind()
            for number in range(3):
                client.put(b": %d\n\n" % number)
        assert client.bodies == [b": first\n\n", b": 0\n\n: 1\n\n: 2\n\n"]

    run_virtual(main())


@given(st.lists(st.integers(1, 50_000), max_size=12))
def test_a_send_holds_whole_frames_and_does_not_flood_the_transport(sizes: list[int]) -> None:
    async def main() -> None:
        client = SteppedClient()
        frames = [b":" + b"x" * size + b"\n\n" for size in sizes]
        async with pumping(client):
            client.put(*frames)
        assert b"".join(frames) == b"".join(client.bodies)
        for body in filter(None, client.bodies):
            *whole, last = FrameReader().feed(body)
            assert body == b"".join([*whole, last])
            assert len(b"".join(whole)) < 64 * 1024

    run_virtual(main())


@pytest.mark.parametrize("reading", [True, False])
def test_the_last_frame_and_the_end_are_one_message(reading: bool) -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.put(b": a\n\n")
            await asyncio.sleep(0)
            client.reading = reading
            client.put(b": b\n\n")
            client.out.close(b"data: [DONE]\n\n")
        assert [(m["body"], m["more_body"]) for m in client.messages[1:]] == [
            (b": a\n\n", True),
            (b": b\n\n", True),
            (b"data: [DONE]\n\n", False),
        ]
        assert client.out.complete

    run_virtual(main())


def test_the_end_is_sent_although_it_comes_while_the_last_frame_is_being_sent() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.put(b": a\n\n")
            await asyncio.sleep(0)
            client.reading = False
            client.put(b": b\n\n")
            await client.behind()
            client.out.close()
            client.read_on()
            await asyncio.sleep(1)
        assert [m["more_body"] for m in client.messages[1:]] == [True, True, False]

    run_virtual(main())


def test_the_end_is_a_message_of_its_own_if_the_last_frame_was_sent_before() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.put(b": a\n\n")
            await asyncio.sleep(1)
            assert not client.out.complete
        assert [(m["body"], m["more_body"]) for m in client.messages[1:]] == [
            (b": a\n\n", True),
            (b"", False),
        ]
        await client.out.end()
        assert len(client.messages) == 3, "the end is sent once"

    run_virtual(main())


def test_a_pump_that_is_over_first_sends_what_is_unread() -> None:
    async def main() -> None:
        client = SteppedClient()
        client.put(b": a\n\n")
        await client.out.pump(lambda: True)
        assert (client.bodies, client.out.unread) == ([b": a\n\n"], 0)

    run_virtual(main())


def test_a_full_buffer_pauses_the_source_and_a_half_empty_one_resumes_it() -> None:
    async def main() -> None:
        client = SteppedClient(limit=100)
        source = RecordedSource(client)
        calls = source.calls
        async with pumping(client, source):
            client.reading = False
            client.put(b"." * 10)
            await client.behind()
            client.put(b"." * 100)
            assert calls == [], "the limit itself is no more than the limit"
            client.put(b"." * 1)
            client.put(b"." * 70_000)
            assert calls == ["pause"]
            assert client.out.unread == 70_101
            client.read_on()
            await asyncio.sleep(1)
            assert calls == ["pause", "resume"]
            client.reading = False
            client.put(b"." * 101)
            assert calls == ["pause", "resume", "pause"]
        assert calls == ["pause", "resume", "pause", "resume"]

    run_virtual(main())


def test_the_source_is_resumed_only_when_half_of_the_limit_is_free() -> None:
    async def main() -> None:
        client = SteppedClient(limit=200_000)
        source = RecordedSource(client)
        async with pumping(client, source):
            client.put(*[b"." * 50_000] * 5)
        assert source.unread == [50_000]

    run_virtual(main())


def test_the_start_of_a_send_that_is_under_way_is_known() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            await asyncio.sleep(3)
            client.reading = False
            client.put(b": a\n\n")
            await asyncio.sleep(2)
            assert client.out.sending_since == 3
            client.read_on()
            await asyncio.sleep(0)
            assert client.out.sending_since is None

    run_virtual(main())


def test_deltas_are_merged_only_while_a_send_is_under_way() -> None:
    async def main(*, merge: bool) -> list[str | None]:
        client = SteppedClient(merge=merge)
        async with pumping(client):
            for text in (b"a", b"b"):
                client.delta(CONTENT, text)
            await asyncio.sleep(0)
            client.reading = False
            client.delta(CONTENT, b"c")
            await client.behind()
            for text in (b"d", b"e", b'\\"'):
                client.delta(CONTENT, text)
            client.delta(REASONING, b"hm")
            client.delta(CONTENT, b"f")
            client.put(b": x\n\n")
            client.delta(CONTENT, b"g")
        return client.texts

    assert run_virtual(main(merge=True)) == ["a", "b", "c", 'de"', None, "f", None, "g"]
    assert run_virtual(main(merge=False)) == ["a", "b", "c", "d", "e", '"', None, "f", None, "g"]


def test_the_size_of_a_merged_frame_is_limited() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.reading = False
            client.delta(CONTENT, b"a")
            await client.behind()
            for _ in range(1000):
                client.delta(CONTENT, b"x" * 100)
            assert client.out.unread < 102_000
        frames = FrameReader().feed(b"".join(client.bodies))
        assert "".join(text or "" for text in client.texts) == "a" + "x" * 100_000
        assert 5 < len(frames) < 10
        assert max(map(len, frames)) < 20_000

    run_virtual(main())


puts = st.integers(1, 30)
deltas = st.sampled_from([CONTENT, REASONING])
readings = st.booleans()


@given(st.lists(st.one_of(puts, deltas, readings), max_size=30), st.booleans())
def test_unread_counts_the_bytes_put_and_not_yet_sent(steps: list[int | Template], merge: bool) -> None:
    async def main() -> None:
        client = SteppedClient(merge=merge)
        out = client.out
        async with pumping(client):
            for step in steps:
                unread, sent = out.unread, sum(map(len, client.bodies))
                if isinstance(step, Template):
                    client.delta(step, b"text")
                    put = {len(b"text"), len(step.frame(b"text"))}
                elif isinstance(step, bool):
                    client.reading = step
                    client.pulse.beat()
                    await asyncio.sleep(0.001)
                    put = {0}
                else:
                    client.put(b"." * step)
                    put = {step}
                assert out.unread + sum(map(len, client.bodies)) - unread - sent in put
        assert out.unread == 0
        assert out.complete == out.committed

    run_virtual(main())


@pytest.mark.parametrize("failing", [0, 1])
def test_a_send_that_fails_ends_the_pump(failing: int) -> None:
    async def main() -> None:
        client = SteppedClient()
        client.failing = b": %d\n\n" % failing
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        for number in range(2):
            client.put(b": %d\n\n" % number)
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await pump
        assert not client.out.complete

    run_virtual(main())


@pytest.mark.parametrize("first", [b"", b": first\n\n"])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_cancelled_pump_leaves_the_response_incomplete(first: bytes, turns: int) -> None:
    async def main() -> None:
        client = SteppedClient()
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        if first:
            client.put(first)
            await asyncio.sleep(0)
        client.reading = False
        client.put(b": a\n\n")
        await client.behind()
        client.out.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        pump.cancel()
        await asyncio.wait([pump])
        assert pump.cancelled()
        assert (client.out.committed, client.out.complete) == (True, False)

    run_virtual(main())


def test_a_send_that_fails_while_it_waits_ends_the_pump() -> None:
    async def main() -> None:
        client = SteppedClient()
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        client.put(b": a\n\n")
        await asyncio.sleep(0)
        client.reading = False
        client.put(b": b\n\n")
        await client.behind()
        client.failing_later = True
        client.read_on()
        with pytest.raises(RuntimeError):
            await pump

    run_virtual(main())


def test_the_error_of_a_callback_ends_the_pump() -> None:
    async def main() -> None:
        client = SteppedClient()
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        client.out.fail(LookupError("first"))
        client.out.fail(LookupError("second"))
        with pytest.raises(LookupError, match="first"):
            await pump

    run_virtual(main())


def test_the_second_of_two_ends_is_ignored() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.out.close(b"data: [DONE]\n\n")
            client.out.close(b"data: {}\n\n")
        assert client.bodies == [b"data: [DONE]\n\n"]

    run_virtual(main())


def test_unread_frames_are_not_sent_after_the_request_was_stopped() -> None:
    async def main() -> None:
        client = SteppedClient()
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        client.out.put(b": a\n\n")
        client.stop()
        with pytest.raises(ClientGone):
            await pump
        assert client.messages == []

    run_virtual(main())


def test_frames_put_after_the_request_was_stopped_are_not_sent() -> None:
    async def main() -> None:
        client = SteppedClient()
        pump = asyncio.create_task(client.out.pump(lambda: False))
        await asyncio.sleep(0)
        client.put(b": a\n\n")
        client.stop()
        client.put(b": b\n\n")
        with pytest.raises(ClientGone):
            await pump
        assert client.bodies == [b": a\n\n"]

    run_virtual(main())


def test_unread_bytes_beyond_the_guarantee_are_drawn_from_the_budget_until_they_are_sent() -> None:
    async def main() -> None:
        client = SteppedClient()
        async with pumping(client):
            client.reading = False
            client.put(b".")
            await client.behind()
            client.put(b"." * GUARANTEED_BYTES)
            assert client.budget.drawn == 0
            client.put(b"." * 1000)
            assert client.budget.drawn == 1000
        assert client.budget.drawn == 0

    run_virtual(main())


def test_discarded_bytes_are_given_back_to_the_budget() -> None:
    async def main() -> None:
        client = SteppedClient()
        client.put(b"." * (GUARANTEED_BYTES + 1))
        assert client.budget.drawn == 1
        client.out.discard()
        assert (client.budget.drawn, client.out.unread) == (0, 0)

    run_virtual(main())


def test_a_stalled_stream_is_cancelled_when_the_budget_is_spent() -> None:
    async def main() -> None:
        client = SteppedClient()
        client.budget.total_bytes = 1000
        async with pumping(client):
            client.reading = False
            client.put(b".")
            await client.behind()
            client.put(b"." * (GUARANTEED_BYTES + 1000))
            assert client.stalls == 0
            client.put(b".")
            assert client.stalls == 1

    run_virtual(main())


def test_the_repr_shows_phase_and_size() -> None:
    async def main() -> None:
        client = SteppedClient()
        shown = [repr(client.out)]
        client.put(b": a\n\n")
        shown.append(repr(client.out))
        async with pumping(client):
            pass
        shown.append(repr(client.out))
        assert shown == [
            "<Downstream open 0 bytes unread>",
            "<Downstream committed 5 bytes unread>",
            "<Downstream complete 0 bytes unread>",
        ]

    run_virtual(main())
