"""Requests that two servers in a row may read differently, each with a request hidden in it.

If a proxy and the server behind it disagree about the end of a request, the hidden request is served as if
the proxy had checked it (RFC 9112, 11.2).
"""

from __future__ import annotations

__all__ = ["FORMS", "HIDDEN", "PLAIN"]

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
PLAIN = b"POST /open HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
_LENGTH = len(HIDDEN)
_CHUNK = b"%x\r\n%b\r\n" % (_LENGTH, HIDDEN)
_END = b"0\r\n\r\n"


def _post(*headers: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    lines = [b"POST /open HTTP/%b" % version, b"Host: localhost", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_CL0 = b"Content-Length: 0"
_CL = b"Content-Length: %d" % _LENGTH
_TE = b"Transfer-Encoding: chunked"

FORMS: dict[str, bytes] = {
    # Two framings.
    "CL.TE": _post(b"Content-Length: %d" % len(_END + HIDDEN), _TE, body=_END + HIDDEN),
    "TE.CL": _post(_TE, b"Content-Length: 4", body=_CHUNK + _END),
    "CL.0": _post(_CL0, _TE, body=_END + HIDDEN),
    "TE on HTTP/1.0": _post(_TE, _CL, body=_END + HIDDEN, version=b"1.0"),
    # Two lengths.
    "CL.CL, the first is shorter": _post(_CL0, _CL, body=HIDDEN),
    "CL.CL, the second is shorter": _post(_CL, _CL0, body=HIDDEN),
    "CL.CL, equal": _post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "a list of lengths": _post(b"Content-Length: 0, %d" % _LENGTH, body=HIDDEN),
    "a length with a sign": _post(b"Content-Length: +0", body=HIDDEN),
    "a negative length": _post(b"Content-Length: -1", body=HIDDEN),
    "a hexadecimal length": _post(b"Content-Length: 0x0", body=HIDDEN),
    "a length with a space inside": _post(b"Content-Length: 0 0", body=HIDDEN),
    "an empty length": _post(b"Content-Length:", body=HIDDEN),
    "a length of 21 digits": _post(b"Content-Length: 100000000000000000000", body=HIDDEN),
    "a length that overflows to 0": _post(b"Content-Length: 18446744073709551616", body=HIDDEN),
    # Transfer codings that only one of two servers understands.
    "TE.TE, another coding second": _post(_TE, b"Transfer-Encoding: x", _CL0, body=_END + HIDDEN),
    "TE.TE, chunked second": _post(b"Transfer-Encoding: x", _TE, body=_END + HIDDEN),
    "TE.TE, chunked twice": _post(_TE, _TE, body=_END + HIDDEN),
    "chunked, chunked": _post(b"Transfer-Encoding: chunked, chunked", body=_END + HIDDEN),
    "identity": _post(b"Transfer-Encoding: identity", _CL0, body=HIDDEN),
    "chunked, identity": _post(b"Transfer-Encoding: chunked, identity", body=_END + HIDDEN),
    "xchunked": _post(b"Transfer-Encoding: xchunked", _CL0, body=HIDDEN),
    "chunked in quotes": _post(b'Transfer-Encoding: "chunked"', _CL0, body=_END + HIDDEN),
    "a vertical tab before chunked": _post(b"Transfer-Encoding: \x0bchunked", _CL0, body=_END + HIDDEN),
    "a NUL after chunked": _post(b"Transfer-Encoding: chunked\0", _CL0, body=_END + HIDDEN),
    "an underscore": _post(b"Transfer_Encoding: chunked", _CL0, body=HIDDEN),
    # Lines.
    "a space before the colon": _post(b"Transfer-Encoding : chunked", _CL0, body=_END + HIDDEN),
    "a tab before the colon": _post(b"Content-Length\t: %d" % _LENGTH, body=HIDDEN),
    "a space before the name": _post(b" Transfer-Encoding: chunked", _CL0, body=_END + HIDDEN),
    "a folded header": _post(b"X-Some: a\r\n Transfer-Encoding: chunked", _CL0, body=_END + HIDDEN),
    "a folded coding": _post(b"Transfer-Encoding:\r\n chunked", _CL0, body=_END + HIDDEN),
    "a bare LF after a header": _post(b"X-Some: a\nTransfer-Encoding: chunked", _CL0, body=_END + HIDDEN),
    "a bare CR inside a header": _post(b"X-Some: a\rTransfer-Encoding: chunked", _CL0, body=_END + HIDDEN),
    "a bare CR after a header": _post(b"X-Some: a\r", _CL0, body=HIDDEN),
    "a NUL in a name": _post(b"Transfer\0-Encoding: chunked", _CL0, body=HIDDEN),
    "no name": _post(b": chunked", _CL0, body=HIDDEN),
    "no colon": _post(b"Transfer-Encoding chunked", _CL0, body=HIDDEN),
    "bare LFs everywhere": b"POST /open HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n" + HIDDEN,
    "a LF ends the head": b"POST /open HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\n" + HIDDEN,
    # Chunks.
    "a chunk size with a sign": _post(_TE, body=b"+0\r\n\r\n" + HIDDEN),
    "a chunk size with 0x": _post(_TE, body=b"0x0\r\n\r\n" + HIDDEN),
    "a chunk size with a space": _post(_TE, body=b"0 \r\n\r\n" + HIDDEN),
    "a chunk size that overflows": _post(_TE, body=b"10000000000000000\r\n\r\n" + HIDDEN),
    "an oversized chunk": _post(_TE, body=b"fffffffffffffff\r\n" + HIDDEN),
    "a chunk size with many zeros": _post(_TE, body=b"0" * 40 + b"\r\n\r\n" + HIDDEN),
    "an empty chunk size": _post(_TE, body=b"\r\n\r\n" + HIDDEN),
    "an extension with a LF": _post(_TE, body=b"0;a=\n\r\n\r\n" + HIDDEN),
    "an extension that ends with a LF": _post(_TE, body=b"2;a\nab\r\n0\r\n\r\n" + HIDDEN),
    "a chunk that ends with a LF": _post(_TE, body=b"3\r\nabc\n0\r\n\r\n" + HIDDEN),
    "a chunk without its line end": _post(_TE, body=b"3\r\nabc0\r\n\r\n" + HIDDEN),
    "a chunk size that ends with a LF": _post(_TE, body=b"3\nabc\r\n0\r\n\r\n" + HIDDEN),
    "a length in a trailer": _post(_TE, body=b"0\r\nContent-Length: %d\r\n\r\n" % _LENGTH + HIDDEN),
    "the last chunk ends with LFs": _post(_TE, body=b"0\n\n" + HIDDEN),
    # Requests that have no body by their method, and versions.
    "GET with a length": b"GET /open HTTP/1.1\r\nHost: localhost\r\n" + _CL + b"\r\n\r\n" + HIDDEN,
    "GET with chunks": b"GET /open HTTP/1.1\r\nHost: localhost\r\n" + _TE + b"\r\n\r\n" + _CHUNK + _END,
    "HTTP/0.9": b"GET /open\r\n" + HIDDEN,
    "HTTP/1.2": _post(_CL0, body=HIDDEN, version=b"1.2"),
    "HTTP/2.0": _post(_CL0, body=HIDDEN, version=b"2.0"),
    "a space in the target": b"GET /open HTTP/1.1 /x HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "a line end in the target": b"GET /open\r HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "an upgrade with a body": _post(b"Connection: Upgrade", b"Upgrade: h2c", _CL, body=HIDDEN),
    "a length that Connection names": _post(b"Connection: Content-Length", _CL, body=HIDDEN),
    "Expect with a length": _post(b"Expect: 100-continue", _CL, body=HIDDEN),
}
