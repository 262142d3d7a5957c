"""slotgate under Debian's Python of the same version.

Debian's Python is built with profile-guided optimization, like those of python.org's images, uv and other
distributions. A Python that pyenv compiles is not, by default. This row shows the difference on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from bench.install import Unavailable
from bench.peers import slotgate as ours
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_OURS = find_spec("slotgate")
_PACKAGES = [
    *([str(Path(_OURS.origin).parents[1])] if _OURS and _OURS.origin else []),
    *(path for path in sys.path if "site-packages" in path),
]


def _install(_: Path) -> str:
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not os.access(python, os.X_OK):
        raise Unavailable(f"no {python}")
    if Path(python).resolve() == Path(sys.executable).resolve():
        raise Unavailable("slotgate runs under it already")
    try:
        subprocess.run(
            [python, "-c", "import slotgate.gateway.cli"], check=True, capture_output=True, env=_environment()
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{python} cannot run slotgate") from error
    return python


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(_PACKAGES)}


def _launch(site: Site) -> Launch:
    launch = ours.PEER.launch(site)
    return replace(launch, env={**launch.env, **_environment()})


PEER = Peer(
    name="slotgate-debian",
    about="slotgate under Debian's Python, which is built with the help of a profile",
    install=_install,
    launch=_launch,
)
