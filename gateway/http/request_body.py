"""Reading a request body: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence

from starlette.types import Receive, Scope

from slotgate.gateway.http.context import headers_of
from slotgate.gateway.http.eager import within
from slotgate.gateway.http.errors import ClientError, ClientGone

__all__ = ["Body", "read_body", "read_pieces", "with_members"]

Body = Sequence[bytes | memoryview]
"""A body on its way to a backend, in pieces that are written one after the other."""
_EMPTY = re.compile(rb"\s*{\s*}")


def with_members(document: bytes, members: Mapping[str, int]) -> Body:
    """The same JSON object with these members too, at its end; of two with one name, parsers take the last.

    Nothing of it is copied: it may be long, and the loop waits.
    """
    if not members:
        return (document,)
    added = b",".join(b'"%b":%d' % (name.encode(), value) for name, value in members.items())
    comma = b"" if _EMPTY.match(document) else b","
    return (memoryview(document)[: document.rindex(b"}")], comma, added, b"}")


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body; raises as `read_pieces` does."""
    pieces = [piece async for piece in read_pieces(scope, receive, max_bytes=max_bytes, timeout_s=timeout_s)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def read_pieces(
    scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float
) -> AsyncIterator[bytes]:
    """The body as it comes, without copying.

    Raises `ClientError` 415 for one that is compressed, which llama-server does not take either; 413 as soon
    as the limit is known to be passed, by the length that is announced or by the bytes that came; 408 when it
    is not whole within `timeout_s`; `ClientGone`.
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
