"""Reading a request body: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from gateway.errors import ClientError, ClientGone

__all__ = ["read_body"]


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body.

    Raises `ClientError` 413 as soon as the limit is known to be passed, by the length that is announced or
    by the bytes that came; 408 when it is not whole within `timeout_s`; `ClientGone`.
    """
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _pieces(receive, max_bytes)
    except TimeoutError as error:
        message = f"the request body was not complete within {timeout_s:g} s"
        raise ClientError("body_timeout", message, status=408, kind="timeout_error") from error


async def _pieces(receive: Receive, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        size += len(body)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join([*pieces, body]) if pieces else body
        pieces.append(body)


def _too_large(max_bytes: int) -> ClientError:
    return ClientError(
        "body_too_large",
        f"the request body is larger than {max_bytes} bytes",
        status=413,
    )
