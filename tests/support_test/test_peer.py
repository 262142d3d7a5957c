"""`AsgiPeer` behaves as uvicorn does with a client."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.support.notation import DONE, T
from tests.support.peer import AsgiPeer
from tests.support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1")]}


def piece(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Send the request body back, then DONE."""
    await send(START)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        await send(piece(message["body"]))
        if not message["more_body"]:
            break
    await send(piece(DONE, more=False))


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Stream until the client is gone."""

    async def produce() -> None:
        await send(START)
        while True:
            await send(piece(T("a")))
            await asyncio.sleep(0.001)

    await receive()
    producing = asyncio.create_task(produce())
    assert await receive() == {"type": "http.disconnect"}
    producing.cancel()
    await asyncio.wait({producing})


async def test_a_request_body_is_fed_by_the_test() -> None:
    async with AsgiPeer(echo) as peer:
        assert await peer.started() == 200
        peer.feed(T("a"))
        assert T("a") == await peer.next_frame()
        peer.feed(T("b"), more=False)
        assert T("b") == await peer.next_frame()
        assert await peer.next_frame() == DONE
        assert T("a") + T("b") + DONE == await peer.whole()
        assert peer.header(b"x-a") == b"1"
        await peer.ended()


async def test_receive_reports_a_disconnect_and_send_does_not() -> None:
    async with AsgiPeer(endless, body=b"") as peer:
        await peer.next_frame()
        peer.disconnect()
        taken = peer.sent
        await peer.ended()
        assert taken == peer.sent


async def test_a_client_that_stops_reading_stalls_send() -> None:
    async with AsgiPeer(echo, body=T("a")) as peer:
        peer.hold(lambda data: data == DONE)
        assert T("a") == await peer.next_frame()
        await peer.until(lambda: peer.blocked)
        assert not peer.complete
        peer.release()
        assert T("a") + DONE == await peer.whole()


async def test_leaving_ends_a_stalled_send() -> None:
    async with AsgiPeer(echo, body=T("a")) as peer:
        peer.hold()
        await peer.until(lambda: peer.blocked)
        peer.disconnect()
        await peer.ended()
        assert peer.body == b""


async def test_receive_after_the_response_is_a_disconnect() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(piece(b"", more=False))
        assert await receive() == {"type": "http.disconnect"}

    async with AsgiPeer(app) as peer:
        await peer.ended()


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([START, START], "second http.response.start"),
        ([piece(b"a")], "body before"),
        ([START, piece(b"", more=False), piece(b"a")], "body after"),
        ([START], "without completing"),
    ],
)
async def test_an_app_that_breaks_the_rules_fails(messages: list[Message], fault: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    with pytest.raises(AssertionError, match=fault):
        async with AsgiPeer(app) as peer:
            await peer.until(lambda: False)


async def test_an_app_that_does_not_end_fails_and_is_cancelled() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    peer = AsgiPeer(app)
    await peer.__aenter__()
    with pytest.raises(AssertionError, match="did not return"):
        await peer.ended(within=0.01)


def test_a_peer_works_on_virtual_time() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for _ in range(240):
            await asyncio.sleep(15)
            await send(piece(T("still here")))
        await send(piece(DONE, more=False))

    async def main() -> None:
        async with AsgiPeer(slow) as peer:
            assert b"still here" in await peer.next_frame(within=16)
            await peer.whole(within=3600)

    run_virtual(main())
