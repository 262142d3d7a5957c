"""A backend's own page is read up to a limit."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from slotgate.gateway.backends.backend import MAX_PAGE_BYTES, Backend

pytestmark = pytest.mark.anyio


async def test_page_without_end_is_not_read_on() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        try:
            while True:
                writer.write(b" " * 1024 * 1024)
                await writer.drain()
        except OSError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = Backend("gpu", f"http://127.0.0.1:{port}", api_key=None)
    try:
        with pytest.raises(httpx.ReadError, match=f"more than {MAX_PAGE_BYTES} bytes"):
            await backend.ask("/props")
    finally:
        await backend.aclose()
        server.close()
