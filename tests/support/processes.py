"""Programs to supervise, and facts about processes from /proc."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

CHILD_PROGRAM = Path(__file__).with_name("child_program.py")


def child_program(*habits: str) -> tuple[str, ...]:
    """Return the command of a program to supervise. `child_program.py` lists its habits."""
    return (sys.executable, "-I", str(CHILD_PROGRAM), *habits)


def vanishes(pid: int, within_s: float) -> bool:
    """Return True if process `pid`, which need not be a child, ends within that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], within_s)
    finally:
        os.close(descriptor)
    return bool(readable)


def command_line(pid: int) -> list[str]:
    """Return the arguments of a running process, the program first."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Return the environment with which a running process was started."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")[:-1]
    return {name: value for name, _, value in (line.partition(b"=") for line in lines)}


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
