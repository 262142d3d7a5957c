"""Closes a client's connection behind a response, or in the middle of one, as the upstream did."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["hang_up"]


def hang_up(scope: Scope) -> None:
    """Close the connection behind the bytes that were sent. An unfinished body stays without its end.

    slotgate's server offers this as an ASGI extension. Raises `ConnectionError` if the server does not have
    it, because servers close the connection at an exception.
    """
    close = scope.get("extensions", {}).get("slotgate.hang_up")
    if close is None:
        raise ConnectionError("the response ends here, and its server cannot close the connection")
    close()
