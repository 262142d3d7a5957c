"""A socket that sends before the event loop has it: whose descriptor it is, and who closes it."""

import asyncio
import contextlib
import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from slotgate.gateway.http.headers import Headers
from slotgate.gateway.testing.fake.net.virtual_time import run_virtual
from slotgate.gateway.upstream import End, UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress

pytestmark = pytest.mark.anyio

LARGE = b"x" * 100_000
"""What is more than 64 KiB is written once the event loop has the socket."""
LINGER = struct.pack("ii", 1, 0)


class Ends:
    def __init__(self) -> None:
        self.ends: list[End] = []

    def head(self, status: int, headers: Headers) -> None:
        """Not looked at."""

    def body(self, data: bytes) -> None:
        """Not looked at."""

    def read_over(self) -> None:
        """Not looked at."""

    def ended(self, end: End) -> None:
        self.ends.append(end)


@contextmanager
def listening(place: Path | None) -> Iterator[tuple[socket.socket, UpstreamTransport]]:
    """At `place`, or on the loopback address. Accepts when it is told to."""
    with socket.socket(socket.AF_UNIX if place else socket.AF_INET) as listener:
        listener.bind(str(place) if place else ("127.0.0.1", 0))
        listener.listen()
        port = 80 if place else listener.getsockname()[1]
        url = httpx.URL(f"http://127.0.0.1:{port}")
        yield (
            listener,
            UpstreamTransport(BackendAddress.of(url, str(place) if place else None), connect_timeout_s=5),
        )


def reset(listener: socket.socket) -> None:
    """What a backend that dies does to a connection."""
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    accepted.close()


class Bystanders:
    """Descriptors that others open meanwhile."""

    def __init__(self) -> None:
        self._sockets: list[tuple[socket.socket, int]] = []

    def open(self) -> None:
        for each in socket.socketpair():
            self._sockets.append((each, os.fstat(each.fileno()).st_ino))

    def lost(self) -> int:
        """How many are no longer what they were; the others are closed."""
        lost = 0
        for each, inode in self._sockets:
            if _inode(each) == inode:
                each.close()
            else:
                lost += 1
                each.detach()
        return lost


def _inode(opened: socket.socket) -> int | None:
    try:
        return os.fstat(opened.fileno()).st_ino
    except OSError:
        return None


def at_once(_: socket.socket) -> None:
    """The backend does nothing; the connection is closed by us."""


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("backend", [reset, at_once], ids=["reset", "closed by us"])
async def test_a_descriptor_is_closed_once_however_early_its_connection_ends(
    tmp_path: Path, backend: Callable[[socket.socket], None], turns: int, *, unix: bool
) -> None:
    """Closed twice, it would by then be another connection's."""
    with listening(tmp_path / "llama.sock" if unix else None) as (listener, transport):
        bystanders, sink = Bystanders(), Ends()
        exchange = transport.begin(UpstreamRequest(b"POST / HTTP/1.1\r\n\r\n", (LARGE,)), sink)
        backend(listener)
        for turn in range(10):
            if turn == turns and backend is at_once:
                exchange.close()
            await asyncio.sleep(0)
            bystanders.open()
        await asyncio.wait_for(exchange.closed, 2)
        assert len(sink.ends) == 1
        del exchange
        await asyncio.sleep(0.01)
        gc.collect()
        assert bystanders.lost() == 0
        assert transport.connections == 0


def test_what_is_said_on_a_loop_with_a_network_of_its_own_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something on this machine may listen at the same number."""

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def main() -> bytes:
        await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
        transport = UpstreamTransport(BackendAddress.of(url, None), connect_timeout_s=5)
        response = await transport.handle_async_request(httpx.Request("GET", url))
        answered = await response.aread()
        await transport.aclose()
        return answered

    with socket.create_server(("127.0.0.1", 0)) as bystander:
        port = bystander.getsockname()[1]
        monkeypatch.setattr("slotgate.gateway.testing.fake.net.memory_network._FIRST_PORT", port)
        url = httpx.URL(f"http://127.0.0.1:{port}")
        bystander.setblocking(False)
        with contextlib.suppress(httpx.TransportError):
            assert run_virtual(main()) == b"hi"
        with pytest.raises(BlockingIOError):
            bystander.accept()
