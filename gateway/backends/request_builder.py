"""The bytes and headers of the requests that go to one backend.

Each request carries the backend's own API key. Of the client's headers it carries only those that the caller
passes.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx

from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.request_body import Body
from slotgate.gateway.upstream import MAY_SEND_TWICE, SENT_TWICE, UpstreamRequest

__all__ = ["RequestBuilder", "was_sent_twice"]


class RequestBuilder:
    """Builds requests for one address and key.

    If the backend gets another address or key, it gets a new builder.
    """

    def __init__(self, base_url: httpx.URL, api_key: str | None) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._queries: dict[tuple[str, str], httpx.Request] = {}
        self._urls: dict[str, httpx.URL] = {}
        """Path -> URL. Parsing one takes a fifth of the time of a short exchange."""
        self._head_starts: dict[str, bytes] = {}
        """Path -> the beginning of the head that all streams on this path share."""

    def __repr__(self) -> str:
        return f"<RequestBuilder {self._base_url}>"

    def query(self, path: str, method: str) -> httpx.Request:
        """Return the request for one of the backend's own pages. It is built once, because it is repeated
        every few seconds for as long as the gateway runs."""
        query = self._queries.get((path, method))
        if query is None:
            headers = [(b"host", self._base_url.netloc), (b"connection", b"close"), *self._key()]
            query = self._queries[path, method] = httpx.Request(method, self._url(path), headers=headers)
        return query

    def whole(
        self, path: str, body: Body, headers: Headers, may_send_twice: Callable[[], bool]
    ) -> httpx.Request:
        """Return a POST whose answer is read as a whole.

        `may_send_twice` is asked if a kept connection was closed at the send.
        """
        return httpx.Request(
            "POST",
            self._url(path),
            headers=[*self._own_headers(), *headers, (b"content-length", b"%d" % _size(body))],
            extensions={"body": body, MAY_SEND_TWICE: may_send_twice},
        )

    def stream(self, path: str, body: Body, headers: Headers) -> UpstreamRequest:
        """Return a POST whose answer is streamed. It has the same headers as `whole`."""
        start = self._head_starts.get(path)
        if start is None:
            request_line = b"POST %s HTTP/1.1" % self._url(path).raw_path
            own = [b"%s: %s" % header for header in self._own_headers()]
            start = self._head_starts[path] = b"\r\n".join([request_line, *own])
        lines = [start, *[b"%s: %s" % header for header in headers]]
        head = b"%s\r\ncontent-length: %d\r\n\r\n" % (b"\r\n".join(lines), _size(body))
        return UpstreamRequest(head, body)

    def _own_headers(self) -> Headers:
        return [(b"host", self._base_url.netloc), (b"accept-encoding", b"identity"), *self._key()]

    def _key(self) -> Headers:
        return [(b"authorization", b"Bearer " + self._api_key.encode())] if self._api_key else []

    def _url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:
            raw_path = self._base_url.raw_path.rstrip(b"/") + path.encode()
            url = self._urls[path] = self._base_url.copy_with(raw_path=raw_path)
        return url


def was_sent_twice(response: httpx.Response) -> bool:
    """Return True if a kept connection was closed at the send, and the request went out on a new one."""
    return SENT_TWICE in response.extensions


def _size(body: Body) -> int:
    return sum(map(len, body))
