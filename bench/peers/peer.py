"""What the benchmark knows of a gateway: how to get it, how to start it, which headers it wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Launch", "Peer", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a gateway is started: its program, a folder of its own, and two ports on loopback."""

    program: str
    folder: Path
    port: int
    upstream_port: int

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"

    def write(self, name: str, text: str) -> str:
        """A file in the folder; returns its path."""
        file = self.folder / name
        file.write_text(text)
        return str(file)


@dataclass(frozen=True, slots=True)
class Launch:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    """What every request to it carries."""


def _version(program: str) -> list[str]:
    return [program, "--version"]


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    about: str
    """What it is and does here, for the report."""
    install: Callable[[Path], str]
    """Returns the program; raises `Unavailable`."""
    launch: Callable[[Site], Launch]
    version: Callable[[str], list[str]] = _version
    """The command by which the program says its version."""
    fraction: int = 1
    """It gets one in so many of the streams: with all of them it falls behind."""
