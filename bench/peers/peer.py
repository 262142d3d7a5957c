"""A gateway of the comparison: how to install it, how to start it, and which headers it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Launch", "Peer", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """The place where a gateway runs: its program, a folder of its own, and two ports on loopback."""

    program: str
    folder: Path
    port: int
    upstream_port: int

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"

    def write(self, name: str, text: str) -> str:
        """Write a file into the folder and return its path."""
        file = self.folder / name
        file.write_text(text)
        return str(file)


@dataclass(frozen=True, slots=True)
class Launch:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of every request to it."""


def _version(program: str) -> list[str]:
    return [program, "--version"]


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    about: str
    """A description for the report."""
    install: Callable[[Path], str]
    """Installs the program and returns it. Raises `Unavailable`."""
    launch: Callable[[Site], Launch]
    version: Callable[[str], list[str]] = _version
    """Arguments with which the program prints its version."""
    fraction: int = 1
    """The gateway gets one in `fraction` of the streams, because it falls behind with all of them."""
