"""One backend as the gateway sees it: what is written to it, and what it has."""

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


def lines(outgoing: UpstreamRequest) -> list[bytes]:
    """The request line, then the headers in any order; the body follows an empty line."""
    head, end, rest = outgoing.head.partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    first, *headers = head.split(b"\r\n")
    return [first, *sorted(header.lower() for header in headers)]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:1/llm/", "http://gpu"])
def test_a_stream_is_asked_for_in_the_same_words_as_a_whole_answer(url: str) -> None:
    def work(backend: Backend) -> None:
        stream = backend.outgoing(CHAT, BODY, HEADERS)
        assert lines(stream) == lines(UpstreamRequest.of(backend.request(CHAT, BODY, HEADERS)))
        assert b"content-length: 7" in lines(stream)
        assert stream.body == BODY

    with_backend(work, url)


def test_each_path_and_each_request_has_a_head_of_its_own() -> None:
    def work(backend: Backend) -> None:
        heads = [backend.outgoing(path, BODY, HEADERS).head for path in (CHAT, "/completion", CHAT)]
        assert [head.split(b" ")[1] for head in heads] == [
            b"/llm" + CHAT.encode(),
            b"/llm/completion",
            b"/llm" + CHAT.encode(),
        ]
        assert b"r2" in backend.outgoing(CHAT, BODY, [(b"x-request-id", b"r2")]).head
        assert b"r1" not in backend.outgoing(CHAT, BODY, []).head

    with_backend(work)


def test_after_a_change_of_its_key_nothing_is_sent_with_the_old_one() -> None:
    def work(backend: Backend) -> None:
        assert b"Bearer secret" in backend.outgoing(CHAT, BODY, []).head
        backend.adjust(api_key="other", slots=None, shared=False, kv_unified=None, connect_timeout_s=1.0)
        head = backend.outgoing(CHAT, BODY, []).head
        assert (b"Bearer other" in head, b"secret" in head) == (True, False)

    with_backend(work)


def test_a_process_that_listens_elsewhere_is_asked_there_by_its_new_name() -> None:
    def work(backend: Backend) -> None:
        backend.outgoing(CHAT, BODY, [])
        backend.move_to("http://127.0.0.1:2")
        assert lines(backend.outgoing(CHAT, BODY, []))[:1] == [b"POST /v1/chat/completions HTTP/1.1"]
        assert b"host: 127.0.0.1:2" in lines(backend.outgoing(CHAT, BODY, []))

    with_backend(work)


def test_a_key_is_in_no_text_that_might_be_logged() -> None:
    with_backend(lambda backend: _no_secret(repr(backend.outgoing(CHAT, BODY, HEADERS))))


def _no_secret(text: str) -> None:
    assert "secret" not in text


def test_admission_looks_again_when_only_the_context_is_another() -> None:
    """As by a reload that says whether it is shared."""

    def work(backend: Backend) -> None:
        told: list[tuple[int, int]] = []
        backend.on_change = lambda _: told.append((backend.pool.total, backend.pool.context))
        backend.n_ctx = 1024
        for unified in (False, True, True, False):
            backend.kv_unified = unified
            backend.resize(2)
        assert told == [(2, 0), (2, 1024), (2, 0)]

    with_backend(work)
