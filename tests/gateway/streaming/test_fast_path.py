"""The fast path writes what the general path writes, and takes only reads that are exactly one whole
chunk."""

from __future__ import annotations

import contextlib
import gzip
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.streaming.fast_path import MAX_TEXT_BYTES
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.streaming.relay import RelayState
from slotgate.gateway.upstream.connection import UpstreamPhase
from slotgate.gateway.upstream.sink import End
from tests.support.chat_chunks import PLAIN, texts
from tests.support.in_memory_stream import CHUNKED, InMemoryStream
from tests.support.notation import DONE
from tests.support.sse import FrameReader, text_of
from tests.support.virtual_time import run_virtual

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"


def event(text: str, kind: str = "content", escape: str = "least") -> bytes:
    shape = replace(PLAIN, kind=kind)
    return b"data: " + shape.payload(text, escape) + b"\n\n"


def chunk(body: bytes, size: str = "%x") -> bytes:
    return (size % len(body)).encode() + b"\r\n" + body + b"\r\n"


BEGINNING = [event("first"), event("clear")]
"""A template is learnt from the first event. After the second, the fast path expects it."""
TEXTS = ["b", " longer", "é", "안녕", '"', "\n\n", "\u2028", "x" * MAX_TEXT_BYTES]
FIRST, CLEAR = map(chunk, BEGINNING)
NO_MORE = b"0\r\n\r\n"


def in_a_stream(
    work: Callable[[InMemoryStream], Awaitable[None]], *, direct: bool = True, head: bytes = CHUNKED
) -> InMemoryStream:
    """Do `work` in a stream that has begun and has learnt its template."""

    async def main() -> InMemoryStream:
        async with InMemoryStream(keep=True, direct=direct) as stream:
            stream.read(head)
            for body in BEGINNING:
                stream.read(chunk(body) if head == CHUNKED else body)
                await stream.settle()
            await work(stream)
        return stream

    return run_virtual(main())


def given_reads(*reads: bytes, direct: bool = True, head: bytes = CHUNKED) -> InMemoryStream:
    async def read_them(stream: InMemoryStream) -> None:
        for read in reads:
            stream.read(read)
            await stream.settle()

    return in_a_stream(read_them, direct=direct, head=head)


def same_on_both_paths(*reads: bytes, head: bytes = CHUNKED) -> InMemoryStream:
    fast, general = (given_reads(*reads, direct=direct, head=head) for direct in (True, False))
    assert general.client.body == fast.client.body
    states = [(stream.token_usage.deltas, stream.relay.state) for stream in (fast, general)]
    assert states[0] == states[1]
    return fast


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that took the general path."""
    bodies: list[bytes] = []
    feed = Frames.feed

    def spied(frames: Frames, body: bytes) -> bool:
        bodies.append(body)
        return feed(frames, body)

    monkeypatch.setattr(Frames, "feed", spied)
    return bodies


def test_a_delta_in_one_chunk_is_written_as_one_chunk_at_once(fed: list[bytes]) -> None:
    async def main(stream: InMemoryStream) -> None:
        for text in TEXTS:
            before = stream.client.pieces
            stream.read(chunk(event(text)))
            assert stream.client.pieces == before + 1, "before anything else runs"

    stream = in_a_stream(main)
    assert fed == BEGINNING, "nothing else took the general path"
    assert [stream.token_usage.deltas, stream.frames.untimed] == [2 + len(TEXTS), len(TEXTS)]
    assert [text_of(frame) for frame in FrameReader().feed(stream.client.body)][2:] == TEXTS


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(chunk(event("b"), "%X"), id="a size in capitals"),
        pytest.param(chunk(event("b"), "0%x"), id="a size with a zero before it"),
        pytest.param(chunk(event("b"), "%x;name=value"), id="a chunk with an extension"),
        pytest.param(chunk(event("b")) + chunk(event("c")), id="two chunks"),
        pytest.param(chunk(event("b") + event("c")), id="two events"),
        pytest.param(chunk(event("b")) + b"5", id="a chunk and the size of the next"),
        pytest.param(chunk(event("b", "reasoning_content")), id="another kind"),
        pytest.param(chunk(event("é", escape="ascii")), id="a text that the gateway writes in another form"),
        pytest.param(chunk(event("b").replace(b'"b"', b'"\x01"')), id="a text that is no JSON"),
        pytest.param(chunk(event("b").replace(b'"b"', b'"\xff"')), id="a text that is no UTF-8"),
        pytest.param(chunk(event("")), id="no text"),
        pytest.param(chunk(event("x" * (MAX_TEXT_BYTES + 1))), id="a text too long for a token"),
        pytest.param(chunk(b": ping\n\n"), id="a comment"),
        pytest.param(chunk(b"data: [DONE]\n\n"), id="the sentinel"),
        pytest.param(NO_MORE, id="the end"),
    ],
)
def test_any_other_read_takes_the_general_path(read: bytes, fed: list[bytes]) -> None:
    given_reads(read)
    assert len(fed) > len(BEGINNING) or read == NO_MORE, "the read was parsed"
    same_on_both_paths(read)


framings = st.sampled_from(["%x", "%x", "%x", "%x", "%X", "0%x", "%x;a=b"])


@given(
    st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), framings), max_size=8),
    st.lists(st.integers(0, 5000), max_size=6),
    st.booleans(),
)
def test_the_output_does_not_depend_on_where_reads_are_cut(
    chunks: list[tuple[list[str], str]], offsets: list[int], whole: bool
) -> None:
    pieces = [chunk(b"".join(map(event, texts)), size) for texts, size in chunks]
    if whole:
        same_on_both_paths(*pieces)
        return
    stream = b"".join(pieces)
    borders = [0, *sorted(offset % (len(stream) + 1) for offset in offsets), len(stream)]
    same_on_both_paths(*(stream[a:b] for a, b in itertools.pairwise(borders) if a < b))


PLAIN_CHUNK = chunk(event("b"))
SIZE = len(event("b"))


def test_data_like_a_chunk_after_half_a_chunk_size_is_not_taken() -> None:
    """The size is cut after its first digit, and the chunk of that size contains data that looks like a
    chunk."""
    size = 16 ** len(f"{SIZE:x}") + SIZE
    behind = b": " + b"c" * (size - SIZE - 6) + b"\n\n"
    assert len(event("b") + b"\r\n" + behind) == size
    stream = same_on_both_paths(FIRST + b"1", PLAIN_CHUNK, behind + b"\r\n", chunk(event("d")))
    assert stream.client.body.count(b'"d"') == 1


def test_data_like_a_chunk_inside_a_chunk_is_not_taken() -> None:
    whole = chunk(event("b") + b"\r\n" + PLAIN_CHUNK + b"\r\n" + event("c"))
    begin = whole.index(PLAIN_CHUNK)
    reads = whole[:begin], PLAIN_CHUNK, whole[begin + len(PLAIN_CHUNK) :], chunk(DONE) + NO_MORE
    assert same_on_both_paths(*reads).relay.state is RelayState.SUCCEEDED


def test_data_like_a_chunk_in_an_unchunked_body_is_not_taken() -> None:
    body = [*BEGINNING, event("b") + b"\r\n", PLAIN_CHUNK, DONE]
    head = LENGTH % len(b"".join(body))
    stream = same_on_both_paths(*body[2:], head=head)
    assert stream.relay.state is RelayState.SUCCEEDED, "every byte was counted"


def test_a_chunk_longer_than_its_size_fails_the_stream() -> None:
    text = "x" * (len(PLAIN_CHUNK) - PLAIN_CHUNK.index(b'"b"') - 1)
    broken = PLAIN_CHUNK[: PLAIN_CHUNK.index(b'"b"') + 1] + text.encode()
    assert same_on_both_paths(broken).relay.state is RelayState.FAILED


def test_the_end_of_a_chunk_alone_fails_the_stream() -> None:
    end = PLAIN_CHUNK.partition(b'"b')[2]
    assert same_on_both_paths(end).relay.state is RelayState.FAILED


def test_a_chunk_after_half_an_event_continues_that_event() -> None:
    stream = same_on_both_paths(chunk(event("b")[:40]), PLAIN_CHUNK, chunk(event("c")))
    assert len(FrameReader().feed(stream.client.body)) == 4, "the two halves are one event"


class OfferRecorder:
    """A sink with a fast path that notes what it is offered, and takes nothing."""

    def __init__(self) -> None:
        self.offered: list[bytes] = []
        self.pushed = b""

    def head(self, status: int, headers: Headers) -> None:
        self.status = status

    def body(self, data: bytes) -> None:
        self.pushed += data

    def read_over(self) -> Callable[[bytes], bool]:
        return self._offer

    def ended(self, end: End) -> None:
        self.end = end

    def _offer(self, read: bytes) -> bool:
        self.offered.append(read)
        return False


def offered_in_second_exchange(*reads: bytes) -> OfferRecorder:
    """Read `reads` in the second exchange of a connection. The first one had a chunked response."""

    async def main() -> OfferRecorder:
        connection = InMemoryStream().connection
        first, second = OfferRecorder(), OfferRecorder()
        connection.send(b"", (), first)
        for read in (CHUNKED, PLAIN_CHUNK, PLAIN_CHUNK, NO_MORE):
            connection.data_received(read)
        assert first.offered == [PLAIN_CHUNK, NO_MORE]
        connection.send(b"", (), second)
        for read in reads:
            connection.data_received(read)
        return second

    return run_virtual(main())


def test_only_reads_after_a_chunk_of_the_same_exchange_are_offered() -> None:
    second = offered_in_second_exchange(LENGTH % len(PLAIN_CHUNK * 2), PLAIN_CHUNK, PLAIN_CHUNK)
    assert second.offered == []
    assert [second.pushed, second.end] == [PLAIN_CHUNK * 2, End.COMPLETE]


def test_reads_of_a_compressed_body_are_not_offered() -> None:
    head = CHUNKED[:-2] + b"content-encoding: gzip\r\n\r\n"
    body = gzip.compress(event("b") * 2)
    second = offered_in_second_exchange(head, chunk(body[:30]), chunk(body[30:]), NO_MORE)
    assert second.offered == []
    assert [second.pushed, second.end] == [event("b") * 2, End.COMPLETE]


def test_no_direct_write_overtakes_frames_that_wait_for_a_slow_client() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.read(chunk(event("b")))
        stream.client.pause()
        stream.read(chunk(event("c")))
        assert stream.out.sending_since is not None, "the general path waits for the client"
        stream.client.resume()
        stream.read(chunk(event("d")))
        await stream.settle()
        stream.read(chunk(event("e")))

    stream = in_a_stream(main)
    assert [text_of(frame) for frame in FrameReader().feed(stream.client.body)][2:] == list("bcde")


def test_no_direct_write_goes_to_a_client_that_left() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.client.leave()
        stream.read(chunk(event("b")))
        assert stream.client.sent == 2, "the general path handles it"

    in_a_stream(main)


def test_no_direct_write_overtakes_the_rest_of_a_large_read() -> None:
    async def main(stream: InMemoryStream) -> None:
        for name in (b"one", b"two"):
            stream.out.put(b"data: %b %b\n\n" % (name, b"x" * 65536))
        stream.out.hand_over()
        stream.read(chunk(event("b")))

    body = in_a_stream(main).client.body
    assert body.index(b"data: one") < body.index(b"data: two") < body.index(b'"b"')


async def stop_and_wait(stream: InMemoryStream) -> None:
    stream.watch.stop()
    await stream.pump


async def close(stream: InMemoryStream) -> None:
    stream.out.close()


@pytest.mark.parametrize("ending", [stop_and_wait, close])
def test_an_end_shuts_the_direct_writer(ending: Callable[[InMemoryStream], Awaitable[None]]) -> None:
    async def main(stream: InMemoryStream) -> None:
        before = stream.client.writer.now
        await ending(stream)
        assert [before is None, stream.client.writer.now is None] == [False, True]
        stream.client.writer.judge()
        assert stream.client.writer.now is None, "the server cannot open it again"

    in_a_stream(main)


def test_the_direct_writer_stays_shut_after_the_last_frame() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.out.close(DONE)
        await stream.settle()
        assert stream.client.body.endswith(DONE)
        assert stream.client.writer.now is None

    in_a_stream(main)


def test_the_direct_writer_stays_shut_after_the_end_of_the_body() -> None:
    async def main(stream: InMemoryStream) -> None:
        await stream.out.end()
        assert stream.client.writer.now is None

    in_a_stream(main)


def test_the_direct_writer_stays_shut_when_a_send_returns_after_the_request_was_stopped() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.client.pause()
        stream.read(chunk(event("b")))
        stream.client.resume()
        stream.watch.stop()
        with contextlib.suppress(ClientGone):
            await stream.pump
        assert stream.pump.done()
        assert stream.client.writer.now is None

    in_a_stream(main)


def test_a_stream_that_changes_its_kind_of_delta_gets_a_fast_path_for_the_new_kind(fed: list[bytes]) -> None:
    thought = [event(text, "reasoning_content") for text in "bcde"]
    stream = given_reads(*map(chunk, thought))
    assert fed == [*BEGINNING, *thought[:2]], "learnt from the first, and expected from the second on"
    assert stream.frames.untimed == 2


def test_a_direct_write_that_fails_fails_the_request() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.client.error = RuntimeError("the transport is closed")
        stream.read(chunk(event("b")))
        stream.client.error = None
        stream.read(chunk(event("c")))
        with pytest.raises(RuntimeError, match="closed"):
            await stream.pump
        assert stream.client.writer.now is None, "no direct write follows"

    in_a_stream(main)


def test_a_write_that_fails_on_the_general_path_ends_the_exchange_within_its_read() -> None:
    async def main(stream: InMemoryStream) -> None:
        stream.client.error = RuntimeError("the transport is closed")
        stream.read(chunk(event("x" * (MAX_TEXT_BYTES + 1))))
        assert stream.relay.error is not None
        assert [stream.relay.error.code, stream.connection.phase] == ["internal_error", UpstreamPhase.CLOSED]

    with capture_logs():  # rendering a traceback for the terminal takes longer than a test may block its loop
        in_a_stream(main)
