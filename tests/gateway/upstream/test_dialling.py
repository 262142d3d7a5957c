"""Connecting: a request to a local backend is sent at once, and an exchange may end before its connection is
made."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from slotgate.gateway.upstream import End, UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress
from slotgate.gateway.upstream.connection import UpstreamConnection
from tests.gateway.upstream.test_transport import RecordingSink, eventually
from tests.support.logged import logged
from tests.support.notation import DONE, END, H, T, chunked

pytestmark = pytest.mark.anyio

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
ANSWER = H + chunked(T("a")) + chunked(DONE) + END
REQUEST = UpstreamRequest(HEAD + b"content-length: 2\r\n\r\n", (b"{}",))
BYTES = REQUEST.head + b"{}"


@contextmanager
def listening(backlog: int = 16, path: Path | None = None) -> Iterator[socket.socket]:
    """A backend whose socket the test itself accepts and reads, without the event loop."""
    with closing(socket.socket(socket.AF_UNIX if path else socket.AF_INET)) as server:
        server.settimeout(5)
        server.bind(str(path) if path else ("127.0.0.1", 0))
        server.listen(backlog)
        yield server


def accepted(server: socket.socket) -> socket.socket:
    connection, _ = server.accept()
    connection.settimeout(5)
    return connection


def url_of(server: socket.socket, host: str = "127.0.0.1") -> httpx.URL:
    return httpx.URL(f"http://{host}:{server.getsockname()[1]}")


@asynccontextmanager
async def transport_to(
    server: socket.socket, *, host: str = "127.0.0.1", within_s: float = 5.0
) -> AsyncIterator[UpstreamTransport]:
    """A transport to this server. At the end of the block, no descriptor and no connection may be left."""
    unix = server.family == socket.AF_UNIX
    address = BackendAddress.of(
        httpx.URL("http://llama") if unix else url_of(server, host), server.getsockname() if unix else None
    )
    transport = UpstreamTransport(address, connect_timeout_s=within_s)
    before = open_sockets()
    yield transport
    await transport.aclose()
    assert transport.connections == 0
    await eventually(lambda: open_sockets() == before)


def open_sockets() -> int:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


def read_whole(connection: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size and (piece := connection.recv(65536)):
        got += piece
    return bytes(got)


@pytest.mark.parametrize("unix", [False, True])
async def test_the_request_is_sent_when_begin_returns(tmp_path: Path, *, unix: bool) -> None:
    with listening(path=tmp_path / "socket" if unix else None) as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            assert exchange.sent
            with accepted(server) as connection:
                assert read_whole(connection, len(BYTES)) == BYTES
                connection.sendall(ANSWER)
            assert await sink.end() is End.COMPLETE
            assert sink.status == 200
            assert sink.data == T("a") + DONE


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_can_be_closed_while_it_is_being_made(turns: int) -> None:
    with listening() as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.close()
            assert sink.ends == [End.CLOSED]
            await asyncio.wait_for(exchange.closed, 5)
            with accepted(server) as connection:
                assert read_whole(connection, len(BYTES) + 1) == BYTES
            assert sink.ends == [End.CLOSED]
            assert exchange.sent


@pytest.mark.parametrize("turns", range(6))
async def test_an_exchange_closed_before_its_connection_is_made_sent_nothing(turns: int) -> None:
    """A host name has to be looked up, so its connection is never made at once."""
    with listening() as server:
        async with transport_to(server, host="localhost") as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            assert not exchange.sent
            for _ in range(turns):
                await asyncio.sleep(0)
            sent = exchange.sent
            exchange.close()
            await asyncio.wait_for(exchange.closed, 5)
            assert exchange.sent == sent
            assert sink.ends == [End.CLOSED]


async def test_a_host_name_is_looked_up_before_the_request_is_sent() -> None:
    with listening() as server:
        async with transport_to(server, host="localhost") as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            await eventually(lambda: exchange.sent)
            with accepted(server) as connection:
                assert read_whole(connection, len(BYTES)) == BYTES
                connection.sendall(ANSWER)
            assert await sink.end() is End.COMPLETE


@pytest.mark.parametrize("size", [60_000, 70_000, 20_000_000])
async def test_a_body_larger_than_the_socket_buffer_arrives_completely(size: int) -> None:
    body = random.Random(size).randbytes(size)
    outgoing = UpstreamRequest(HEAD + b"content-length: %d\r\n\r\n" % size, (body[:7], memoryview(body)[7:]))
    with listening() as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            transport.begin(outgoing, sink)
            with accepted(server) as connection:
                got = await asyncio.to_thread(read_whole, connection, len(outgoing.head) + size)
                assert got == outgoing.head + body
                connection.sendall(ANSWER)
            assert await sink.end() is End.COMPLETE


async def test_bytes_that_come_before_the_event_loop_has_the_socket_are_read() -> None:
    with listening() as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            transport.begin(REQUEST, sink)
            with accepted(server) as connection:
                connection.sendall(ANSWER)
                read_whole(connection, len(BYTES))
            assert not sink.status
            assert await sink.end() is End.COMPLETE
            assert sink.data == T("a") + DONE


async def test_a_reset_before_the_event_loop_has_the_socket_cuts_the_exchange_short() -> None:
    with listening() as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            accepted(server).close()  # with bytes unread: a reset
            assert await sink.end() is End.CUT_SHORT
            assert exchange.sent


async def test_a_socket_that_the_event_loop_refuses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(_: object, connection: UpstreamConnection) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(UpstreamTransport, "_adopt", refuses)
    with listening() as server:
        async with transport_to(server) as transport:
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            assert await sink.end() is End.CUT_SHORT
            assert exchange.sent
            with accepted(server) as connection:
                assert read_whole(connection, len(BYTES) + 1) == BYTES


async def test_an_internal_error_in_connecting_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: object, connection: UpstreamConnection) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(UpstreamTransport, "_connect", fails)
    with listening() as server, logged() as log:
        async with transport_to(server, host="localhost") as transport:
            sink = RecordingSink()
            transport.begin(REQUEST, sink)
            assert await sink.end() is End.UNREACHABLE
        log.expect("internal error")


async def test_an_address_without_a_listener_is_unreachable() -> None:
    with listening() as server:
        url = url_of(server)
    transport = UpstreamTransport(BackendAddress.of(url, None), connect_timeout_s=5)
    sink = RecordingSink()
    exchange = transport.begin(REQUEST, sink)
    assert not sink.ends
    assert await sink.end() is End.UNREACHABLE
    assert not exchange.sent
    assert isinstance(exchange.failure, ConnectionRefusedError)
    with pytest.raises(httpx.ConnectError) as refused:
        await transport.handle_async_request(httpx.Request("GET", url))
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)  # shows a restart to the monitor
    await eventually(lambda: transport.connections == 0)


async def test_a_connection_to_a_full_listener_is_awaited() -> None:
    """If the queue of a listener is full, a connection is not made at once."""
    with listening(backlog=0) as server:
        async with transport_to(server, within_s=0.05) as transport:
            sinks = [RecordingSink() for _ in range(4)]
            exchanges = [transport.begin(REQUEST, sink) for sink in sinks]
            late = [
                (exchange, sink) for exchange, sink in zip(exchanges, sinks, strict=True) if not exchange.sent
            ]
            assert late
            for exchange, sink in late:
                assert await sink.end() is End.UNREACHABLE
                assert isinstance(exchange.failure, TimeoutError)


async def test_a_request_is_sent_later_if_no_descriptor_is_free_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(*_: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    with listening() as server:
        async with transport_to(server) as transport:
            monkeypatch.setattr("slotgate.gateway.upstream.transport.socket.socket", no_more)
            sink = RecordingSink()
            exchange = transport.begin(REQUEST, sink)
            assert not exchange.sent
            monkeypatch.undo()
            connection = await asyncio.to_thread(accepted, server)
            with connection:
                assert await asyncio.to_thread(read_whole, connection, len(BYTES)) == BYTES
                connection.sendall(ANSWER)
            assert await sink.end() is End.COMPLETE


@pytest.mark.parametrize(
    ("url", "family", "address"),
    [
        ("http://127.0.0.1:8080", socket.AF_INET, ("127.0.0.1", 8080)),
        ("http://127.1.2.3", socket.AF_INET, ("127.1.2.3", 80)),
        ("http://[::1]:81", socket.AF_INET6, ("::1", 81)),
        ("https://127.0.0.1:8080", None, None),
        ("http://localhost:8080", None, None),
        ("http://10.0.0.1:8080", None, None),
        ("http://[fe80::1]:8080", None, None),
    ],
)
async def test_an_address_on_this_machine_without_tls_is_local(
    url: str, family: socket.AddressFamily | None, address: tuple[str, int] | None
) -> None:
    local = BackendAddress.of(httpx.URL(url), None).local
    assert local == (None if family is None else (family, address))
    over_a_socket = BackendAddress.of(httpx.URL(url), "/run/llama")
    assert over_a_socket.local == (socket.AF_UNIX, "/run/llama")


async def test_connections_that_end_at_random_are_all_closed() -> None:
    pick = random.Random(11)
    with listening(backlog=512) as server:
        async with transport_to(server) as transport:

            async def one() -> None:
                sink = RecordingSink()
                exchange = transport.begin(REQUEST, sink)
                for _ in range(pick.randrange(8)):
                    await asyncio.sleep(0)
                exchange.close()
                await asyncio.wait_for(exchange.closed, 5)
                assert len(sink.ends) == 1

            for _ in range(20):
                await asyncio.gather(*(one() for _ in range(20)))
                for _ in range(20):
                    accepted(server).close()
