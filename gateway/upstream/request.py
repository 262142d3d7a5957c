"""A request in the form in which it is sent to a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

__all__ = ["UpstreamRequest"]


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """The bytes of one request.

    Streams do not use `httpx.Request`: building one takes longer than all other work of sending a request.
    """

    head: bytes = field(repr=False)
    """Request line and headers, up to and including the empty line. They contain the backend's key, so `repr`
    does not show them."""
    body: Sequence[bytes | memoryview] = field(repr=False)

    @classmethod
    def of(cls, request: httpx.Request) -> UpstreamRequest:
        """Convert a request of httpx, which has set host and content-length.

        The body is the request's extension `body` if it has one, else its content.
        """
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%s: %s" % pair for pair in request.headers.raw]
        body: Sequence[bytes | memoryview] | None = request.extensions.get("body")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        return cls(head, (request.content,) if body is None else body)
