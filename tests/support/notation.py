"""A shorthand for the bytes of upstream scripts.

Upper-case names are bytes as they stand on the wire (`H`, `END`) or one server-sent event (`STOP`,
`USE`, `DONE`, `T(text)`). Events are shown without HTTP chunking; `chunked` adds it. `T` leaves
everything but control characters unescaped, so that U+2028 and emoji travel as raw UTF-8.

This module does no IO.
"""

from __future__ import annotations

import orjson

JSON = b"application/json; charset=utf-8"

H = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

_HEAD = b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":['
STOP = _HEAD + b'{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USE = _HEAD + b'],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"
PING = b":\n\n"

_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 500: b"Internal Server Error"}


def text_event(text: str) -> bytes:
    """Return a chat chunk whose only content is `text`."""
    return _HEAD + b'{"index":0,"delta":{"content":' + orjson.dumps(text) + b'},"finish_reason":null}]}\n\n'


T = text_event


def numbered_event(index: int) -> bytes:
    """Return a chat chunk with its number, so that a reader can match arrivals with writes."""
    return text_event(f" {index}")


def chunked(*parts: bytes) -> bytes:
    """Return each part as one HTTP chunk, without the final chunk (`END`)."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)


def answer(status: int, body: object, *headers: bytes, content_type: bytes = JSON) -> bytes:
    """Return a whole response with a content-length. `body` is bytes, or a value for orjson."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [
        b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b"Status")),
        b"Content-Type: " + content_type,
        b"Content-Length: %d" % len(content),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


def error_body(status: int, message: str, kind: str, **more: object) -> bytes:
    """Return llama-server's error object."""
    return orjson.dumps({"error": {"code": status, "message": message, "type": kind, **more}})
