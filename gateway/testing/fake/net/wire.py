"""The bytes in which llama-server answers: heads, chunks and errors. Pure functions.

Names, order and values of headers are those of the real program (build b1-7e4c0a9), which contract tests hold
them to.
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
    "Problem",
    "answer",
    "chunked",
    "data",
    "file_not_found",
    "loading",
    "named",
    "old_error",
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
"""What a browser is told before it asks from another origin."""

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}


class Problem(Exception):
    """A request that llama-server refuses, with the answer that it gives."""

    def __init__(
        self, status: int, message: str, kind: str, *, code_last: bool = False, **more: object
    ) -> None:
        """The program writes its errors in two orders: `code_last` is the one of its HTTP layer."""
        super().__init__(message)
        self.status = status
        code, said = {"code": status}, {"message": message, "type": kind}
        self.error: Json = said | code | more if code_last else code | said | more

    @property
    def body(self) -> Json:
        return {"error": self.error}


def file_not_found() -> Problem:
    return Problem(404, "File Not Found", "not_found_error", code_last=True)


def loading() -> Problem:
    return Problem(503, "Loading model", "unavailable_error", code_last=True)


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
    """A whole answer. `body` is bytes as they are, or anything that orjson takes.

    `more` and `after` are header lines, before the content's own and after all. `length` states a wrong one.
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
    """Each part as one HTTP chunk. The final chunk is `END` and is not added."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)


def data(value: object) -> bytes:
    """A server-sent event without a name."""
    return b"data: %b\n\n" % orjson.dumps(value)


def named(kind: str, **fields: object) -> bytes:
    """A server-sent event with a name, which is also its member `type`."""
    return b"event: %b\n%b" % (kind.encode(), data({"type": kind, **fields}))


def old_error(error: Json) -> bytes:
    """An error inside a stream as builds of 2024 wrote it: in a field of its own."""
    return b"error: %b\n\n" % orjson.dumps(error)
