"""The fast path writes what the long way writes, and takes nothing that is not exactly one whole chunk."""

import contextlib
import gzip
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.line import CHUNKED, Line
from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.fast_path import LONGEST
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.streaming.relay import RelayState
from slotgate.gateway.upstream.connection import End, UpstreamPhase
from tests.support.chat_chunks import PLAIN, texts
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
"""A template is learnt from the first, and the second is the first to be foreseen."""
TEXTS = ["b", " longer", "é", "안녕", '"', "\n\n", "\u2028", "x" * LONGEST]
FIRST, CLEAR = map(chunk, BEGINNING)
NO_MORE = b"0\r\n\r\n"


def on_a_line(work: Callable[[Line], Awaitable[None]], *, direct: bool = True, head: bytes = CHUNKED) -> Line:
    """A stream that is in full course, in which `work` is done."""

    async def main() -> Line:
        async with Line(keep=True, direct=direct) as line:
            line.read(head)
            for body in BEGINNING:
                line.read(chunk(body) if head == CHUNKED else body)
                await line.settle()
            await work(line)
        return line

    return run_virtual(main())


def given_reads(*reads: bytes, direct: bool = True, head: bytes = CHUNKED) -> Line:
    async def read_them(line: Line) -> None:
        for read in reads:
            line.read(read)
            await line.settle()

    return on_a_line(read_them, direct=direct, head=head)


def the_same_on_both_ways(*reads: bytes, head: bytes = CHUNKED) -> Line:
    short, long = (given_reads(*reads, direct=direct, head=head) for direct in (True, False))
    assert long.client.body == short.client.body
    states = [(line.token_usage.deltas, line.relay.state, line.frames.unparsed) for line in (short, long)]
    assert states[0] == states[1]
    return short


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that took the long way."""
    bodies: list[bytes] = []
    feed = Frames.feed

    def spied(frames: Frames, body: bytes) -> bool:
        bodies.append(body)
        return feed(frames, body)

    monkeypatch.setattr(Frames, "feed", spied)
    return bodies


def test_a_delta_that_comes_as_one_chunk_leaves_as_one_chunk_at_once(fed: list[bytes]) -> None:
    async def main(line: Line) -> None:
        for text in TEXTS:
            before = line.client.pieces
            line.read(chunk(event(text)))
            assert line.client.pieces == before + 1, "before anything else runs"

    line = on_a_line(main)
    assert fed == BEGINNING, "nothing else was looked at closely"
    assert [line.token_usage.deltas, line.frames.untimed] == [2 + len(TEXTS), len(TEXTS)]
    assert [text_of(frame) for frame in FrameReader().feed(line.client.body)][2:] == TEXTS


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
        pytest.param(chunk(event("é", escape="ascii")), id="a text that we write in another way"),
        pytest.param(chunk(event("b").replace(b'"b"', b'"\x01"')), id="a text that is no JSON"),
        pytest.param(chunk(event("b").replace(b'"b"', b'"\xff"')), id="a text that is no UTF-8"),
        pytest.param(chunk(event("")), id="no text"),
        pytest.param(chunk(event("x" * (LONGEST + 1))), id="a text too long for a token"),
        pytest.param(chunk(b": ping\n\n"), id="a comment"),
        pytest.param(chunk(b"data: [DONE]\n\n"), id="the sentinel"),
        pytest.param(NO_MORE, id="the end"),
    ],
)
def test_anything_else_takes_the_long_way(read: bytes, fed: list[bytes]) -> None:
    given_reads(read)
    assert len(fed) > len(BEGINNING) or read == NO_MORE, "it was looked at"
    the_same_on_both_ways(read)


framings = st.sampled_from(["%x", "%x", "%x", "%x", "%X", "0%x", "%x;a=b"])


@given(
    st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), framings), max_size=8),
    st.lists(st.integers(0, 5000), max_size=6),
    st.booleans(),
)
def test_every_cut_of_a_stream_comes_out_the_same(
    chunks: list[tuple[list[str], str]], offsets: list[int], whole: bool
) -> None:
    pieces = [chunk(b"".join(map(event, texts)), size) for texts, size in chunks]
    if whole:
        the_same_on_both_ways(*pieces)
        return
    stream = b"".join(pieces)
    borders = [0, *sorted(offset % (len(stream) + 1) for offset in offsets), len(stream)]
    the_same_on_both_ways(*(stream[a:b] for a, b in itertools.pairwise(borders) if a < b))


PLAIN_CHUNK = chunk(event("b"))
SIZE = len(event("b"))


def test_what_looks_like_a_chunk_after_half_a_size_is_not_one() -> None:
    """A size that was cut after its first digit, and in the chunk of that size what looks like a chunk."""
    size = 16 ** len(f"{SIZE:x}") + SIZE
    behind = b": " + b"c" * (size - SIZE - 6) + b"\n\n"
    assert len(event("b") + b"\r\n" + behind) == size
    line = the_same_on_both_ways(FIRST + b"1", PLAIN_CHUNK, behind + b"\r\n", chunk(event("d")))
    assert line.client.body.count(b'"d"') == 1


def test_what_looks_like_a_chunk_inside_a_chunk_is_not_one() -> None:
    whole = chunk(event("b") + b"\r\n" + PLAIN_CHUNK + b"\r\n" + event("c"))
    begin = whole.index(PLAIN_CHUNK)
    reads = whole[:begin], PLAIN_CHUNK, whole[begin + len(PLAIN_CHUNK) :], chunk(DONE) + NO_MORE
    assert the_same_on_both_ways(*reads).relay.state is RelayState.SUCCEEDED


def test_a_body_without_chunks_may_hold_what_looks_like_one() -> None:
    body = [*BEGINNING, event("b") + b"\r\n", PLAIN_CHUNK, DONE]
    head = LENGTH % len(b"".join(body))
    line = the_same_on_both_ways(*body[2:], head=head)
    assert line.relay.state is RelayState.SUCCEEDED, "every byte was counted"


def test_a_chunk_that_does_not_end_where_its_size_says_is_broken() -> None:
    text = "x" * (len(PLAIN_CHUNK) - PLAIN_CHUNK.index(b'"b"') - 1)
    broken = PLAIN_CHUNK[: PLAIN_CHUNK.index(b'"b"') + 1] + text.encode()
    assert the_same_on_both_ways(broken).relay.state is RelayState.FAILED


def test_what_a_chunk_ends_with_is_no_chunk() -> None:
    end = PLAIN_CHUNK.partition(b'"b')[2]
    assert the_same_on_both_ways(end).relay.state is RelayState.FAILED


def test_a_chunk_behind_half_an_event_goes_on_with_it() -> None:
    line = the_same_on_both_ways(chunk(event("b")[:40]), PLAIN_CHUNK, chunk(event("c")))
    assert line.frames.unparsed == 1


class Bare:
    """A sink that would take anything."""

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


def offered_to_a_bare_sink(*reads: bytes) -> Bare:
    """`reads` are those of the second exchange of a connection, whose first one was chunked."""

    async def main() -> Bare:
        connection = Line().connection
        first, second = Bare(), Bare()
        connection.send(b"", (), first)
        for read in (CHUNKED, PLAIN_CHUNK, PLAIN_CHUNK, NO_MORE):
            connection.data_received(read)
        assert first.offered == [PLAIN_CHUNK, NO_MORE]
        connection.send(b"", (), second)
        for read in reads:
            connection.data_received(read)
        return second

    return run_virtual(main())


def test_only_what_follows_a_chunk_of_the_same_exchange_is_offered() -> None:
    second = offered_to_a_bare_sink(LENGTH % len(PLAIN_CHUNK * 2), PLAIN_CHUNK, PLAIN_CHUNK)
    assert second.offered == []
    assert [second.pushed, second.end] == [PLAIN_CHUNK * 2, End.COMPLETE]


def test_nothing_that_is_deflated_is_offered() -> None:
    head = CHUNKED[:-2] + b"content-encoding: gzip\r\n\r\n"
    body = gzip.compress(event("b") * 2)
    second = offered_to_a_bare_sink(head, chunk(body[:30]), chunk(body[30:]), NO_MORE)
    assert second.offered == []
    assert [second.pushed, second.end] == [event("b") * 2, End.COMPLETE]


def test_nothing_overtakes_what_waits_for_a_slow_client() -> None:
    async def main(line: Line) -> None:
        line.read(chunk(event("b")))
        line.client.pause()
        line.read(chunk(event("c")))
        assert line.out.sending_since is not None, "`send` knows how to wait"
        line.client.resume()
        line.read(chunk(event("d")))
        await line.settle()
        line.read(chunk(event("e")))

    line = on_a_line(main)
    assert [text_of(frame) for frame in FrameReader().feed(line.client.body)][2:] == list("bcde")


def test_a_client_that_left_is_not_written_to() -> None:
    async def main(line: Line) -> None:
        line.client.leave()
        line.read(chunk(event("b")))
        assert line.client.sent == 2, "`send` knows what to do with it"

    on_a_line(main)


def test_nothing_overtakes_what_is_left_of_a_large_read() -> None:
    async def main(line: Line) -> None:
        for name in (b"one", b"two"):
            line.out.put(b"data: %b %b\n\n" % (name, b"x" * 65536))
        line.out.hand_over()
        line.read(chunk(event("b")))

    body = on_a_line(main).client.body
    assert body.index(b"data: one") < body.index(b"data: two") < body.index(b'"b"')


@pytest.mark.parametrize("ending", [Downstream.stop, Downstream.close])
def test_the_lane_is_closed_by_an_end(ending: Callable[[Downstream], None]) -> None:
    async def main(line: Line) -> None:
        before = line.client.writer.now
        ending(line.out)
        assert [before is None, line.client.writer.now is None] == [False, True]
        line.client.writer.judge()
        assert line.client.writer.now is None, "whatever the server says"
        with contextlib.suppress(ClientGone):
            line.relay.close()
            await line.pump

    on_a_line(main)


def test_the_lane_stays_closed_behind_the_last_frame() -> None:
    async def main(line: Line) -> None:
        line.out.close(DONE)
        await line.settle()
        assert line.client.body.endswith(DONE)
        assert line.client.writer.now is None

    on_a_line(main)


def test_the_lane_stays_closed_behind_the_end_of_the_body() -> None:
    async def main(line: Line) -> None:
        await line.out.end()
        assert line.client.writer.now is None

    on_a_line(main)


def test_the_lane_stays_closed_when_a_send_returns_after_nobody_reads_any_more() -> None:
    async def main(line: Line) -> None:
        line.client.pause()
        line.read(chunk(event("b")))
        line.out.stop()
        line.client.resume()
        with pytest.raises(ClientGone):
            await line.pump
        assert line.client.writer.now is None

    on_a_line(main)


def test_a_stream_that_goes_on_in_another_kind_gets_a_lane_for_it(fed: list[bytes]) -> None:
    thought = [event(text, "reasoning_content") for text in "bcde"]
    line = given_reads(*map(chunk, thought))
    assert fed == [*BEGINNING, *thought[:2]], "learnt from the first, and foreseen from the second on"
    assert line.frames.untimed == 2


def test_a_write_that_fails_is_the_request_s_error() -> None:
    async def main(line: Line) -> None:
        line.client.error = RuntimeError("the transport is closed")
        line.read(chunk(event("b")))
        line.client.error = None
        line.read(chunk(event("c")))
        with pytest.raises(RuntimeError, match="closed"):
            await line.pump
        assert line.client.writer.now is None, "nothing more takes this way"

    on_a_line(main)


def test_a_write_that_fails_on_the_long_way_ends_the_exchange_within_its_read() -> None:
    async def main(line: Line) -> None:
        line.client.error = RuntimeError("the transport is closed")
        line.read(chunk(event("x" * (LONGEST + 1))))
        assert line.relay.error is not None
        assert [line.relay.error.code, line.connection.phase] == ["internal_error", UpstreamPhase.CLOSED]

    on_a_line(main)
