"""The connection as an answer sees it."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["OriginWriter", "ResponseWriter"]

_ALLOWED: Final = b"Access-Control-Allow-Origin: "


class ResponseWriter(Protocol):
    """Takes the bytes of an answer."""

    @property
    def gone(self) -> bool:
        """True once the client has left. Ask only when llama-server would notice it (`ClientChecks`)."""
        ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """Close the connection behind the bytes that were written (FIN)."""
        ...

    def reset(self) -> None:
        """Reset the connection (RST). Bytes that were not delivered yet are lost."""
        ...


class OriginWriter:
    """Adds the origin of a web page to the head of the response (CORS)."""

    def __init__(self, writer: ResponseWriter, origin: bytes) -> None:
        self._writer = writer
        self._origin = origin

    @property
    def gone(self) -> bool:
        return self._writer.gone

    def write(self, data: bytes) -> None:
        if self._origin:
            named = _ALLOWED + self._origin
            data, self._origin = data.replace(_ALLOWED, named, 1), b""
        self._writer.write(data)

    def finish(self) -> None:
        self._writer.finish()

    def reset(self) -> None:
        self._writer.reset()
