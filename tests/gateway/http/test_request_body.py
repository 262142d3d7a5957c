"""A request body is read completely, within its limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message, Scope

from slotgate.gateway.http.errors import ClientError, ClientGone
from slotgate.gateway.http.request_body import read_body
from tests.support.virtual_time import run_virtual

LIMIT = 10


class Upload:
    """The client's side of `receive`: pieces of a body with pauses between them; then nothing more."""

    def __init__(self, *pieces: bytes | float, length: int | None = None, whole: bool = True) -> None:
        self.pieces = list(pieces)
        self.whole = whole
        self.received = 0
        self.scope: Scope = {"headers": [] if length is None else [(b"content-length", b"%d" % length)]}

    async def receive(self) -> Message:
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, bytes):
                self.received += len(piece)
                more = bool(self.pieces) or not self.whole
                return {"type": "http.request", "body": piece, "more_body": more}
            await asyncio.sleep(piece)
        return {"type": "http.disconnect"}

    def read(self) -> bytes:
        return run_virtual(read_body(self.scope, self.receive, max_bytes=LIMIT, timeout_s=60))

    def refused(self) -> ClientError:
        with pytest.raises(ClientError) as error:
            self.read()
        return error.value


@pytest.mark.parametrize(
    "pieces", [[b""], [b"{}"], [b"{", b"}"], [b"", b"{", b"", b"}", b""], [b"x" * LIMIT]]
)
def test_a_body_is_joined_from_its_pieces(pieces: Sequence[bytes]) -> None:
    body = b"".join(pieces)
    assert Upload(*pieces).read() == body
    assert Upload(*pieces, length=len(body)).read() == body


def test_scenario_093_an_announced_length_above_the_limit_is_refused_unread() -> None:
    upload = Upload(b"x" * (LIMIT + 1), length=LIMIT + 1)
    error = upload.refused()
    assert (error.status, error.code, upload.received) == (413, "body_too_large", 0)
    assert str(LIMIT) in error.message


def test_scenario_093_a_body_without_length_is_refused_one_byte_above_the_limit() -> None:
    upload = Upload(*[b"x"] * 100)
    assert (upload.refused().code, upload.received) == ("body_too_large", LIMIT + 1)


def test_a_wrong_content_length_does_not_bypass_the_limit() -> None:
    upload = Upload(*[b"x"] * 100, length=5)
    assert (upload.refused().code, upload.received) == ("body_too_large", LIMIT + 1)


def test_a_body_that_is_not_complete_in_time_is_refused() -> None:
    assert Upload(b"{", 59.0, b"}").read() == b"{}"
    slow = Upload(b"{", 30.0, b" ", 30.0, b"}").refused()
    assert (slow.status, slow.code, slow.kind) == (408, "body_timeout", "timeout_error")
    assert "60 s" in slow.message


@pytest.mark.parametrize("pieces", [[], [b"{", 1.0]])
def test_a_disconnect_during_the_body_raises_client_gone(pieces: Sequence[bytes | float]) -> None:
    with pytest.raises(ClientGone):
        Upload(*pieces, whole=False).read()
