"""Finds the command line of a llama-server that runs on this machine, by the port that it listens on.

llama-server does not say over HTTP if its slots share one context, but its command line does. Linux shows the
command of every process, and of those of the same user also the sockets and the environment. Where anything
is missing (another system, another user, a container), nothing is found.

Most machines run no llama-server, which the names of their processes show in a moment. Only if one has such a
name, a thread reads the tables of sockets, which can be long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import uvloop

__all__ = ["LocalCommand", "command_of_listener", "local_port"]

PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class LocalCommand:
    words: tuple[str, ...]
    """The program and its arguments."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its variables that are options of llama-server, such as LLAMA_ARG_N_PARALLEL."""


def local_port(url: str) -> int | None:
    """Return the port of a URL on this machine's loopback interface, or None."""
    split = urlsplit(url)
    host = split.hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return (split.port or 80) if is_local and split.scheme == "http" else None


async def command_of_listener(port: int, proc: Path = PROC) -> LocalCommand | None:
    """Return the command of the llama-server that listens on this TCP port, or None.

    Only on uvloop: another event loop may use another network.
    """
    if not isinstance(asyncio.get_running_loop(), uvloop.Loop):
        return None
    candidates = _candidates(proc)
    return await asyncio.to_thread(_listener_of, candidates, port, proc) if candidates else None


def _candidates(proc: Path) -> list[Path]:
    """Return the processes that are llama-servers by their names."""
    found = []
    for name in os.listdir(proc) if proc.exists() else ():
        with suppress(OSError):  # it has ended
            if name.isdigit() and b"llama" in (proc / name / "comm").read_bytes():
                found.append(proc / name)
    return found


def _listener_of(candidates: list[Path], port: int, proc: Path) -> LocalCommand | None:
    sockets = set(_sockets(port, proc))
    for process in candidates:
        with suppress(OSError):  # it has ended, or belongs to another user
            if sockets and _has_one_of(process, sockets):
                return LocalCommand(tuple(_texts(process / "cmdline")), _options(process))
    return None


def _sockets(port: int, proc: Path) -> Iterator[str]:
    """Yield the links of the sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().split("\n")[1:-1]:
                columns = line.split()
                if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{columns[9]}]"


def _has_one_of(process: Path, sockets: set[str]) -> bool:
    for link in list((process / "fd").iterdir()):
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            if str(link.readlink()) in sockets:
                return True
    return False


def _options(process: Path) -> dict[str, str]:
    pairs = (text.partition("=") for text in _texts(process / "environ"))
    return {name: value for name, _, value in pairs if name.startswith("LLAMA_ARG_")}


def _texts(file: Path) -> list[str]:
    return file.read_bytes().decode(errors="replace").split("\0")[:-1]
