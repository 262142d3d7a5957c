"""HTTP messages and server-sent frames do not depend on how their bytes are cut."""

from __future__ import annotations

import pytest

from tests.support.http1 import BodyReader, FramingError, Message, MessageReader, parse_head
from tests.support.notation import DONE, END, PING, STOP, T, chunked, numbered_event
from tests.support.sse import FrameReader, data_of, index_of, text_of

PLAIN = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
WITH_LENGTH = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hel", b"lo") + END
WIRE = PLAIN + CHUNKED + WITH_LENGTH + PLAIN


def read(*pieces: bytes) -> list[Message]:
    reader = MessageReader()
    return [message for piece in pieces for message in reader.feed(piece)]


def test_pipelined_messages_are_separated() -> None:
    messages = read(WIRE)
    assert [message.raw for message in messages] == [PLAIN, CHUNKED, WITH_LENGTH, PLAIN]
    assert [message.body for message in messages] == [b"", b"hello", b"hello", b""]


def test_a_cut_changes_no_message() -> None:
    for offset in range(1, len(WIRE)):
        assert read(WIRE) == read(WIRE[:offset], WIRE[offset:]), offset


def test_a_byte_at_a_time_changes_no_message() -> None:
    assert read(WIRE) == read(*(bytes([byte]) for byte in WIRE))


@pytest.mark.parametrize(
    "wire",
    [
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nSpace : before colon\r\n\r\n",
    ],
)
def test_broken_framing_is_refused(wire: bytes) -> None:
    with pytest.raises(FramingError):
        read(wire)


def test_a_body_without_framing_runs_to_the_end() -> None:
    body = BodyReader(parse_head(b"HTTP/1.1 200 OK"), until_eof=True)
    assert (body.feed(b"abc"), body.done) == (b"abc", False)
    assert body.end()


def test_a_truncated_body_is_recognized() -> None:
    body = BodyReader(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5"), until_eof=True)
    assert body.feed(b"abc") == b"abc"
    assert not body.end()


FRAMES = [T("é\u2028\u0085"), b"event: x\r\ndata: {}\r\n\r\n", PING, STOP, DONE]


def frames_of(*pieces: bytes) -> list[bytes]:
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)]


def test_a_cut_changes_no_frame() -> None:
    wire = b"".join(FRAMES)
    for offset in range(len(wire)):
        assert frames_of(wire[:offset], wire[offset:]) == FRAMES, offset


def test_frames_end_at_bare_carriage_returns_too() -> None:
    assert frames_of(b"data: a\r\rdata: b\r\rd") == [b"data: a\r\r", b"data: b\r\r"]


def test_the_data_of_a_frame() -> None:
    assert data_of(b"event: x\ndata: a\ndata:b\n\n") == b"a\nb"
    assert data_of(PING) == b""
    assert [text_of(T("é")), text_of(STOP), text_of(DONE)] == ["é", None, None]
    assert [index_of(numbered_event(17)), index_of(T("x"))] == [17, None]
