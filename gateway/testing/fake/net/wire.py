"""The bytes of llama-server's answers: heads, chunks and errors. Pure functions.

Names, order and values of headers are those of llama-server (build b1-7e4c0a9). Contract tests compare them
with the real program.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

__all__ = [
    "DONE",
    "END",
    "JSON",
    "OPTIONS_ANSWER",
    "PING",
    "STREAM_HEAD",
    "Json",
    "LlamaRefusal",
    "answer",
    "chunked",
    "data",
    "file_not_found",
    "loading",
    "named",
    "old_error_event",
]

Json = dict[str, Any]

JSON: Final = b"application/json; charset=utf-8"
END: Final = b"0\r\n\r\n"
DONE: Final = b"data: [DONE]\n\n"
PING: Final = b":\n\n"
KEEP_ALIVE: Final = b"Keep-Alive: timeout=5, max=100"
CLOSE: Final = b"Connection: close"

_OURS: Final = b"Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n" + _OURS + b"X-Accel-Buffering: no\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n" + KEEP_ALIVE + b"\r\n\r\n"
)

OPTIONS_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\n" + _OURS + b"Access-Control-Allow-Credentials: true\r\n"
    b"Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\nAccess-Control-Allow-Headers: *\r\n"
    b"Content-Type: text/html\r\n" + KEEP_ALIVE + b"\r\nContent-Length: 0\r\n\r\n"
)
"""The answer to a browser's preflight request (CORS)."""

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}


class LlamaRefusal(Exception):
    """Raised for a request that llama-server refuses. It holds the error that llama-server answers."""

    def __init__(
        self, status: int, message: str, kind: str, *, code_last: bool = False, **more: object
    ) -> None:
        """`code_last` writes the members in the order of llama-server's HTTP layer, which differs."""
        super().__init__(message)
        self.status = status
        code, said = {"code": status}, {"message": message, "type": kind}
        self.error: Json = said | code | more if code_last else code | said | more

    @property
    def body(self) -> Json:
        return {"error": self.error}


def file_not_found() -> LlamaRefusal:
    return LlamaRefusal(404, "File Not Found", "not_found_error", code_last=True)


def loading() -> LlamaRefusal:
    return LlamaRefusal(503, "Loading model", "unavailable_error", code_last=True)


def answer(
    status: int,
    body: object,
    *,
    content_type: bytes = JSON,
    more: tuple[bytes, ...] = (),
    after: tuple[bytes, ...] = (),
    only_head: bool = False,
    length: int | None = None,
) -> bytes:
    """Return a whole response. `body` is bytes, or a value that orjson serializes.

    `more` are header lines before the content headers, `after` are header lines at the end. `length` replaces
    the true content length by a wrong one.
    """
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [
        b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b"Status")),
        b"Server: llama.cpp",
        b"Access-Control-Allow-Origin: ",
        *more,
        b"Content-Type: " + content_type,
        b"Content-Length: %d" % (len(content) if length is None else length),
        KEEP_ALIVE if status < 400 else CLOSE,
        *after,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if only_head else content)


def chunked(*parts: bytes) -> bytes:
    """Return each part as one HTTP chunk, without the final chunk (`END`)."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)


def data(value: object) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %b\n\n" % orjson.dumps(value)


def named(kind: str, **fields: object) -> bytes:
    """Return a server-sent event with a name, which is also the member `type` of its data."""
    return b"event: %b\n%b" % (kind.encode(), data({"type": kind, **fields}))


def old_error_event(error: Json) -> bytes:
    """Return an error inside a stream as llama-server builds of 2024 wrote it, in a field named `error`."""
    return b"error: %b\n\n" % orjson.dumps(error)
