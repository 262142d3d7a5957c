"""The requests that are sent to a backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.upstream import UpstreamRequest
from tests.support.virtual_time import run_virtual

CHAT = "/v1/chat/completions"
BODY = (b'{"a":', memoryview(b"1}"))
HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"r1")]


def with_backend(work: Callable[[Backend], None], url: str = "http://127.0.0.1:1/llm/") -> None:
    async def course() -> None:
        backend = Backend("gpu", url, api_key="secret")
        try:
            work(backend)
        finally:
            await backend.aclose()

    run_virtual(course())


def lines(request: UpstreamRequest) -> list[bytes]:
    """Return the request line, then the headers in any order. The body follows an empty line."""
    head, end, rest = request.head.partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    first, *headers = head.split(b"\r\n")
    return [first, *sorted(header.lower() for header in headers)]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:1/llm/", "http://gpu"])
def test_a_stream_request_has_the_headers_of_a_whole_request(url: str) -> None:
    def work(backend: Backend) -> None:
        stream = backend.stream_request(CHAT, BODY, HEADERS)
        assert lines(stream) == lines(UpstreamRequest.of(backend.whole_request(CHAT, BODY, HEADERS)))
        assert b"content-length: 7" in lines(stream)
        assert stream.body == BODY

    with_backend(work, url)


def test_each_path_and_each_request_has_its_own_head() -> None:
    def work(backend: Backend) -> None:
        heads = [backend.stream_request(path, BODY, HEADERS).head for path in (CHAT, "/completion", CHAT)]
        assert [head.split(b" ")[1] for head in heads] == [
            b"/llm" + CHAT.encode(),
            b"/llm/completion",
            b"/llm" + CHAT.encode(),
        ]
        assert b"r2" in backend.stream_request(CHAT, BODY, [(b"x-request-id", b"r2")]).head
        assert b"r1" not in backend.stream_request(CHAT, BODY, []).head

    with_backend(work)


def test_a_changed_key_replaces_the_old_one_at_once() -> None:
    def work(backend: Backend) -> None:
        assert b"Bearer secret" in backend.stream_request(CHAT, BODY, []).head
        backend.adjust(
            api_key="other",
            slots=None,
            shared=False,
            kv_unified=None,
            connect_timeout_s=1.0,
            start_timeout_s=1.0,
            loads_on_request=False,
        )
        head = backend.stream_request(CHAT, BODY, []).head
        assert (b"Bearer other" in head, b"secret" in head) == (True, False)

    with_backend(work)


def test_a_moved_backend_is_sent_its_new_host() -> None:
    def work(backend: Backend) -> None:
        backend.stream_request(CHAT, BODY, [])
        backend.move_to("http://127.0.0.1:2")
        assert lines(backend.stream_request(CHAT, BODY, []))[:1] == [b"POST /v1/chat/completions HTTP/1.1"]
        assert b"host: 127.0.0.1:2" in lines(backend.stream_request(CHAT, BODY, []))

    with_backend(work)


def test_the_repr_of_a_request_hides_the_key() -> None:
    with_backend(lambda backend: _no_secret(repr(backend.stream_request(CHAT, BODY, HEADERS))))


def _no_secret(text: str) -> None:
    assert "secret" not in text
