"""Send complete responses as raw ASGI messages.

A large body is sent in pieces. Each waits until the client has nearly caught up, so an answer that is not
read stays in one place, and the sender knows how far its client is.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Send

from slotgate.gateway.http.error_formats import OPENAI, ErrorFormat
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.http.headers import Headers

__all__ = ["send_error", "send_json", "send_whole"]

_JSON = (b"content-type", b"application/json")
PIECE_BYTES = 256 * 1024
"""The size of the pieces. The server keeps one piece and its write buffer of 64 KiB at most."""


async def send_whole(send: Send, status: int, headers: Headers, body: bytes | memoryview) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    if len(body) > PIECE_BYTES:
        view = memoryview(body)
        ends = range(PIECE_BYTES, len(body), PIECE_BYTES)
        for end in ends:
            await send(
                {"type": "http.response.body", "body": view[end - PIECE_BYTES : end], "more_body": True}
            )
        body = view[ends[-1] :]
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: Any, headers: Headers | None = None) -> None:  # noqa: ANN401
    await send_whole(send, status, [_JSON, *(headers or [])], orjson.dumps(value))


async def send_error(send: Send, error: GatewayError, shape: ErrorFormat = OPENAI) -> None:
    await send_whole(send, shape.status(error), [_JSON, *error.headers()], shape.body(error))
