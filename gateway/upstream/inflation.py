"""Decompresses the body of a response. Some proxies compress although they were asked not to.

A short read can decompress to gigabytes, so the result of each read is bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

__all__ = ["inflated"]

MAX_INFLATION = 50
"""A read may decompress to this many times its bytes. Answers in JSON compress to a tenth."""
LEAST_INFLATED_BYTES = 1024 * 1024
"""Any read may decompress to so many bytes, however short it is."""


def inflated(encoding: bytes, push: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a function that decompresses a body and gives it to `push`, as it comes.

    Both functions raise `zlib.error`: for an unknown encoding, for bytes that are not compressed, and for too
    many bytes.
    """
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise zlib.error(f"unknown content-encoding {encoding!r}")
    decompressor = zlib.decompressobj(wbits=47 if encoding != b"deflate" else 15)

    def decompress(data: bytes) -> None:
        most = max(LEAST_INFLATED_BYTES, len(data) * MAX_INFLATION)
        plain = decompressor.decompress(data, most)
        if decompressor.unconsumed_tail:
            raise zlib.error(f"{len(data)} bytes decompress to more than {most}")
        if plain:
            push(plain)

    return decompress
