"""Where a llama-server of ours listens: a loopback port that was free a moment ago, or a Unix socket."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A port of the loopback interface."""

    port: int

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def arguments(self) -> tuple[str, ...]:
        return ("--host", LOOPBACK, "--port", str(self.port))

    def clear(self) -> None:
        """A port needs no clearing."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a socket. llama-server takes a `--host` that ends in .sock for one."""

    path: Path

    @property
    def url(self) -> str:
        return f"unix:{self.path}"

    def arguments(self) -> tuple[str, ...]:
        return ("--host", str(self.path))

    def clear(self) -> None:
        """llama-server leaves its socket behind, and a socket that exists blocks the next start."""
        if self.path.is_socket():
            with suppress(FileNotFoundError):
                self.path.unlink()


Address = TcpAddress | UnixAddress


def free_port() -> int:
    """A port nobody listens on. Nothing keeps it free: whoever uses it must check who answers there."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port
