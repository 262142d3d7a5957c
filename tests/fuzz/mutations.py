"""Small changes to known inputs. Wholly random bytes would be refused at the first byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

PIECES = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\n\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
    ),
    *(
        b"\xff",
        b"\xed\xa0\xbd",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b"\\u0000",
        b"\\ud800",
        b"data: ",
        b"[DONE]",
    ),
    *(
        b"null",
        b"true",
        b"-1",
        b"1e400",
        b"1e308",
        b"0.5",
        b"18446744073709551616",
        b"NaN",
        b"--",
        b"0\r\n\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.1", b"http://a@b/", b"= 1\n"),
)
"""Bytes that mean something to one of the formats."""
Edit = Callable[[bytes, int, int, bytes], bytes]


def _removed(data: bytes, at: int, length: int, _: bytes) -> bytes:
    return data[:at] + data[at + length :]


def _inserted(data: bytes, at: int, _: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at:]


def _replaced(data: bytes, at: int, length: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + length :]


def _repeated(data: bytes, at: int, length: int, _: bytes) -> bytes:
    return data[:at] + data[at : at + length] * 2 + data[at + length :]


def _flipped(data: bytes, at: int, length: int, _: bytes) -> bytes:
    return data[:at] + bytes(byte ^ (1 << length % 8) for byte in data[at : at + 1]) + data[at + 1 :]


_EDITS: Sequence[Edit] = (_removed, _inserted, _replaced, _repeated, _flipped)


def edited(rng: random.Random, inputs: Sequence[bytes]) -> bytes:
    """Return an input with up to six changes, or the beginning of one input with the end of another."""
    data = rng.choice(inputs)
    if rng.randrange(4) == 0:
        other = rng.choice(inputs)
        data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.randrange(7)):
        edit, at, piece = rng.choice(_EDITS), rng.randrange(len(data) + 1), rng.choice(PIECES)
        data = edit(data, at, rng.randrange(65), piece)
    return data


def mutated(inputs: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """The same as a strategy."""
    return st.randoms(use_true_random=False).map(lambda rng: edited(rng, inputs))
