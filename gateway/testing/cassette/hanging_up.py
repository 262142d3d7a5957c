"""Ending a connection behind a response, or in the middle of one, as an upstream did it."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["hang_up"]


def hang_up(scope: Scope) -> None:
    """Close the connection once what was sent is on its way; without the end of a body that has none yet.

    The server offers this as an extension. Raises `ConnectionError` where it does not: servers then close.
    """
    close = scope.get("extensions", {}).get("slotgate.hang_up")
    if close is None:
        raise ConnectionError("the response ends here, and its server cannot close the connection")
    close()
