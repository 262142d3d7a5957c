"""Connections in memory: each is two transports of one event loop.

What one end writes, the other end reads in the next turn of the loop. The rest is as with sockets: order is
kept, a close arrives behind the bytes written before it, an abort loses the bytes that were not read, and an
end that has paused reading gets nothing until it resumes. Writing never waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["MemoryNetwork", "MemoryServer", "MemoryTransport"]

Address = tuple[str, int]
_FIRST_PORT = 49152


class MemoryTransport(asyncio.Transport):
    """Either end of a connection in memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, name: Address) -> None:
        super().__init__({"sockname": name, "socket": None})
        self._loop = loop
        self._protocol = protocol
        self._inbox: deque[bytes | None] = deque()
        """Bytes that arrived and were not read. None stands for the other end's close."""
        self._closing = False
        self._reading = True
        self.peer: MemoryTransport | None = None

    def __repr__(self) -> str:
        return f"<MemoryTransport {self.get_extra_info('sockname')} {'closing' if self._closing else 'open'}>"

    # -- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._closing and self.peer is not None:
            self.peer._receive(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no write buffer."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and self.peer is not None:
            self.peer._receive(None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self._protocol

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._end(None)

    def abort(self) -> None:
        if not self._closing:
            peer = self.peer
            self._end(None)
            if peer is not None:
                peer._inbox.clear()
                peer._end(ConnectionResetError("the other end aborted"))

    # -- called by the other end

    def begin(self, peer: MemoryTransport) -> None:
        self.peer = peer
        self._protocol.connection_made(self)

    def _receive(self, data: bytes | None) -> None:
        if not self._closing:
            self._inbox.append(data)
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._inbox and self._reading and not self._closing:
            data = self._inbox.popleft()
            if data is not None:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)


class MemoryServer:
    """The members of `asyncio.Server` that servers use."""

    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self._network = network
        self._address = address

    @property
    def sockets(self) -> tuple[MemoryServer, ...]:
        """This server itself, because it has `getsockname` as sockets have."""
        return (self,)

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network.close(self._address)

    async def wait_closed(self) -> None:
        """Return at once: `close` leaves nothing to wait for."""


class MemoryNetwork:
    """The addresses of one event loop on which servers listen."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listening: dict[Address, Callable[[], asyncio.Protocol]] = {}
        self._ports = itertools.count(_FIRST_PORT)

    def __repr__(self) -> str:
        return f"<MemoryNetwork {sorted(self._listening)}>"

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> MemoryServer:
        """Listen on an address; port 0 takes a free one. Raises OSError if the address is in use."""
        address = (host, port or next(self._ports))
        if address in self._listening:
            raise OSError(f"the address {address} is in use")
        self._listening[address] = factory
        return MemoryServer(self, address)

    def close(self, address: Address) -> None:
        self._listening.pop(address, None)

    def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> tuple[Any, Any]:
        accept = self._listening.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(f"no server listens on {host}:{port}")
        client = MemoryTransport(self._loop, factory(), (host, next(self._ports)))
        server = MemoryTransport(self._loop, accept(), (host, port))
        server.begin(client)
        client.begin(server)
        return client, client.get_protocol()
