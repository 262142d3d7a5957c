"""Read a request body, with limits on its size and its time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.types import Receive, Scope

from slotgate.gateway.http.context import headers_of
from slotgate.gateway.http.eager import within
from slotgate.gateway.http.errors import ClientError, ClientGone

__all__ = ["Body", "read_body", "read_pieces", "with_members"]

Body = Sequence[bytes | memoryview]
"""A body for a backend, in pieces that are written one after another."""
_EMPTY = re.compile(rb"\s*{\s*}")


def with_members(document: bytes, members: Mapping[str, int]) -> Body:
    """Append members to a JSON object. If it has a member of the same name, the appended one wins.

    The document is not copied: it may be long, and copying it would block the event loop.
    """
    if not members:
        return (document,)
    added = b",".join(b'"%b":%d' % (name.encode(), value) for name, value in members.items())
    comma = b"" if _EMPTY.match(document) else b","
    return (memoryview(document)[: document.rindex(b"}")], comma, added, b"}")


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int,
    timeout_s: float,
    on_piece: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Return the whole body. Raises the errors of `read_pieces`."""
    pieces = [
        piece
        async for piece in read_pieces(
            scope, receive, max_bytes=max_bytes, timeout_s=timeout_s, on_piece=on_piece
        )
    ]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def read_pieces(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int,
    timeout_s: float,
    on_piece: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[bytes]:
    """Yield the pieces of the body as they arrive, without copying.

    `on_piece` is called with the size of each piece, and may raise an error to end the reading.

    Raises `ClientError` 415 for a compressed body, which llama-server does not accept either; 413 as soon as
    the announced length or the bytes received exceed the limit; 408 if the body is not complete within
    `timeout_s`. Raises `ClientGone` if the client disconnects.
    """
    headers = headers_of(scope)
    if encoding := headers.get(b"content-encoding"):
        _check_encoding(encoding)
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    deadline = asyncio.get_running_loop().time() + timeout_s
    size, more = 0, True
    while more:
        try:
            message = await within(receive(), deadline)
        except TimeoutError as error:
            said = f"the request body was not complete within {timeout_s:g} s"
            raise ClientError("body_timeout", said, status=408, kind="timeout_error") from error
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        on_piece(len(piece))
        if piece or not (more or size):
            yield piece


def _check_encoding(encoding: bytes) -> None:
    if encoding.strip().lower() not in (b"", b"identity"):
        message = "the request body must not be compressed"
        headers = [(b"accept-encoding", b"identity")]  # RFC 9110, 15.5.16
        raise ClientError("unsupported_content_encoding", message, status=415, headers=headers)


def _too_large(max_bytes: int) -> ClientError:
    return ClientError(
        "body_too_large",
        f"the request body is larger than {max_bytes} bytes",
        status=413,
    )
