"""Find the versions of all programs, so that tables of different versions can be told apart."""

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
    """Return the version that the program prints, or "" if it prints none."""
    found = _VERSION.search(_said(peer.version(program)))
    return found[1] if found is not None else ""


def commit(source: Path = _SOURCE) -> str:
    """Return the commit of this source, marked if files have changed since; "" outside a clone."""
    return _said(["git", "-C", str(source), "describe", "--always", "--dirty", "--exclude=*"]).strip()


def _said(command: list[str]) -> str:
    """Run the program. Some programs print their version on stderr."""
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
