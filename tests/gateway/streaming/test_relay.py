"""The relay releases its lease in the right way, and sends frames to the client in time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import cast

import pytest

from slotgate.admission import Outcome
from slotgate.gateway.http.errors import UpstreamError
from slotgate.gateway.streaming.relay import RelayState
from slotgate.gateway.upstream import End, UpstreamExchange, UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.connection import UpstreamConnection
from slotgate.gateway.upstream.sink import Sink
from tests.gateway.streaming.test_fast_path import chunk, event
from tests.support.in_memory_stream import CHUNKED, InMemoryStream
from tests.support.notation import DONE, END
from tests.support.sse import FrameReader, text_of
from tests.support.virtual_time import run_virtual


def said(stream: InMemoryStream) -> str:
    """The text that the client has received so far."""
    return "".join(text_of(frame) or "" for frame in FrameReader().feed(stream.client.body))


def test_tokens_that_come_with_the_end_are_sent_before_the_lease_is_released() -> None:
    async def main() -> None:
        async with InMemoryStream(keep=True) as stream:
            stream.read(CHUNKED)
            stream.read(chunk(event("a")) + chunk(event("b")) + chunk(DONE) + END)
            assert said(stream) == "ab"
            assert DONE not in stream.client.body
            await stream.settle()
            assert stream.client.body.endswith(DONE)

    run_virtual(main())


def test_only_the_first_of_many_tokens_in_one_read_is_parsed() -> None:
    async def main() -> None:
        async with InMemoryStream(keep=True) as stream:
            stream.read(CHUNKED)
            stream.read(b"".join(chunk(event(text)) for text in "abcdef"))
            assert stream.frames.parsed == 1
            assert stream.token_usage.deltas == 6
            await stream.settle()
            assert said(stream) == "abcdef"

    run_virtual(main())


def test_the_first_token_does_not_wait_for_the_rest_of_its_read() -> None:
    """It is sent before the rest of the read is parsed."""

    async def main() -> None:
        async with InMemoryStream(keep=True) as stream:
            stream.read(CHUNKED)
            stream.read(chunk(event("a")) + chunk(event("b")) + chunk(event("c")))
            await stream.settle()
            kept = stream.client.kept
            assert kept is not None
            assert [data.count(b"data: ") for data in kept] == [1, 2]
            stream.read(chunk(event("d")) + chunk(event("e")))
            await stream.settle()
            assert [data.count(b"data: ") for data in kept] == [1, 2, 2]

    run_virtual(main())


END_OF_STREAM: dict[str, Callable[[InMemoryStream], object]] = {
    "succeeded": lambda stream: stream.read(chunk(DONE) + END),
    "lost": lambda stream: stream.connection.connection_lost(None),
    "failed": lambda stream: stream.relay.fail(UpstreamError("idle_timeout", "silence")),
    "stopped": lambda stream: stream.watch.stop(),
}


@pytest.mark.parametrize("end", END_OF_STREAM)
def test_an_ended_stream_is_freed_without_the_garbage_collector(end: str) -> None:
    """Objects that hold each other would keep the bodies of requests in memory until the next collection."""

    async def run() -> list[weakref.ref[object]]:
        async with InMemoryStream() as stream:
            parts: list[object] = [stream.out, stream.relay, stream.frames, stream.watch]
            refs = [weakref.ref(part) for part in parts]
            del parts
            stream.read(CHUNKED)
            for text in "abc":
                stream.read(chunk(event(text)))
                await stream.settle()
            END_OF_STREAM[end](stream)
            return refs

    async def main() -> list[object]:
        freed = await run()
        await asyncio.sleep(0)
        return [part for ref in freed if (part := ref()) is not None]

    gc.disable()
    try:
        assert run_virtual(main()) == []
    finally:
        gc.enable()


class DiallingTransport:
    """An upstream transport that never connects."""

    def __init__(self) -> None:
        self.connection = UpstreamConnection(asyncio.get_running_loop())
        self.sink: Sink | None = None

    def begin(self, outgoing: UpstreamRequest, sink: Sink) -> UpstreamExchange:
        self.sink = sink
        self.connection.send(outgoing.head, outgoing.body, sink)
        return UpstreamExchange(self.connection)


@pytest.mark.parametrize("how", ["closed", "failed", "unreachable"])
def test_a_lease_is_released_as_unused_if_nothing_was_sent(how: str) -> None:
    async def main() -> None:
        backend = DiallingTransport()
        stream = InMemoryStream()
        lease = stream.relay._lease
        stream.relay.start(
            cast("UpstreamTransport", backend), UpstreamRequest(b"POST / HTTP/1.1\r\n\r\n", ())
        )
        assert lease.live
        if how == "closed":
            stream.relay.close()
        elif how == "failed":
            stream.relay.fail(UpstreamError("first_byte_timeout", "silence"))
        else:
            stream.relay.ended(End.UNREACHABLE)
            assert stream.relay.error is not None
            assert stream.relay.error.retry_safe
            assert stream.relay.error.code == "upstream_unreachable"
        assert lease.outcome is Outcome.UNUSED
        assert stream.relay.state is RelayState.FAILED

    run_virtual(main())


@pytest.mark.parametrize("how", ["closed", "failed", "cut"])
def test_a_lease_is_released_as_abandoned_if_something_may_have_been_sent(how: str) -> None:
    async def main() -> None:
        async with InMemoryStream() as stream:
            lease = stream.relay._lease
            if how == "closed":
                stream.relay.close()
            elif how == "failed":
                stream.relay.fail(UpstreamError("first_byte_timeout", "silence"))
            else:
                stream.connection.connection_lost(None)
            assert lease.outcome is Outcome.ABANDONED

    run_virtual(main())
