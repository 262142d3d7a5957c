"""Which versions took part, so that a table can be told from a later one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from bench.peers import Peer

__all__ = ["commit", "version_of"]

_LIMIT_S = 60.0
_SOURCE = Path(__file__).parent
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+[\w.+-]*)")


def version_of(peer: Peer, program: str) -> str:
    """What the installed program says of itself; empty if it says nothing like a version."""
    found = _VERSION.search(_said(peer.version(program)))
    return found[1] if found is not None else ""


def commit(source: Path = _SOURCE) -> str:
    """Of this source, marked if it has been changed since; empty outside a clone."""
    return _said(["git", "-C", str(source), "describe", "--always", "--dirty", "--exclude=*"]).strip()


def _said(command: list[str]) -> str:
    """Some say it on standard error."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
