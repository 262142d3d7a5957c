"""The chunks of the synthetic upstream. They look like llama-server's; each text is the time of its writing.

The text of a token is ` t` and the sixteen digits of CLOCK_MONOTONIC in nanoseconds, a clock that all
processes of a machine share. So a client behind a gateway knows the latency of each token, and it can count
tokens even if a gateway puts several into one chunk.
"""

from __future__ import annotations

import re

__all__ = ["CONTENT_TYPE", "END", "FINISH", "ROLE", "TOKEN_BYTES", "Stamps", "http_chunk", "token"]

CONTENT_TYPE = "text/event-stream"
TOKEN_BYTES = 18
_find = re.compile(rb" t(\d{16})").findall
_TAIL = (
    b'"created":1795967593,"id":"chatcmpl-MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI","model":"upstream",'
    b'"system_fingerprint":"b1-7e4c0a9","object":"chat.completion.chunk"'
)


def http_chunk(data: bytes) -> bytes:
    """Encode one HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choice: bytes, more: bytes = b"") -> bytes:
    return b'data: {"choices":[{%b}],%b%b}\n\n' % (choice, _TAIL, more)


ROLE = http_chunk(_event(b'"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}'))
FINISH = http_chunk(
    _event(
        b'"finish_reason":"length","index":0,"delta":{}',
        b',"timings":{"cache_n":30,"prompt_n":1,"prompt_ms":6.8,"predicted_n":100,"predicted_ms":500.0}',
    )
)
END = http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

_MARK = b"@" * TOKEN_BYTES
_BEFORE, _AFTER = http_chunk(
    _event(b'"finish_reason":null,"index":0,"delta":{"content":"%b"}' % _MARK)
).split(_MARK)


def token(now_ns: int) -> bytes:
    """Return the HTTP chunk of one text delta with the current time as its text."""
    return b"%b t%016d%b" % (_BEFORE, now_ns, _AFTER)


class Stamps:
    """Reads the times of writing from the bytes of a body, in pieces of any size."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Return the digits of the tokens that `body` completes."""
        if self._rest:
            body = self._rest + body
            self._rest = b""
        if not body.endswith(b"\n"):
            start = body.rfind(b" ", max(0, len(body) - TOKEN_BYTES + 1))
            if start >= 0:
                body, self._rest = body[:start], body[start:]
        return _find(body)
