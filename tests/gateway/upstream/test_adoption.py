"""A socket that sends before the event loop has it: its descriptor is closed exactly once."""

from __future__ import annotations

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
"""More than 64 KiB: the rest is written once the event loop has the socket."""
LINGER = struct.pack("ii", 1, 0)


class EndRecorder:
    """A sink that notes ends and ignores everything else."""

    def __init__(self) -> None:
        self.ends: list[End] = []

    def head(self, status: int, headers: Headers) -> None:
        """Ignored."""

    def body(self, data: bytes) -> None:
        """Ignored."""

    def read_over(self) -> None:
        """Ignored."""

    def ended(self, end: End) -> None:
        self.ends.append(end)


@contextmanager
def listening(place: Path | None) -> Iterator[tuple[socket.socket, UpstreamTransport]]:
    """Listen at `place`, or on the loopback address. The test accepts the connections."""
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
    """Reset a connection, as the kernel does for a backend that dies."""
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    accepted.close()


class Bystanders:
    """Descriptors that other code opens meanwhile."""

    def __init__(self) -> None:
        self._sockets: list[tuple[socket.socket, int]] = []

    def open(self) -> None:
        for each in socket.socketpair():
            self._sockets.append((each, os.fstat(each.fileno()).st_ino))

    def lost(self) -> int:
        """Return the number of descriptors that were closed by other code. Close the others."""
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
    """The backend does nothing; the test closes the exchange."""


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("backend", [reset, at_once], ids=["reset", "closed by us"])
async def test_a_descriptor_is_closed_exactly_once_even_if_its_connection_ends_early(
    tmp_path: Path, backend: Callable[[socket.socket], None], turns: int, *, unix: bool
) -> None:
    """A second close would hit another connection that has the same number by then."""
    with listening(tmp_path / "llama.sock" if unix else None) as (listener, transport):
        bystanders, sink = Bystanders(), EndRecorder()
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


def test_a_loop_with_its_own_network_never_uses_a_real_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real program on this machine may listen on the same port."""

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
