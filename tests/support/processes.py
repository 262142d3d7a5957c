"""What tests ask the kernel about processes, without polling in a sleep."""

import os
import select
import sys
from pathlib import Path

CHILD_PROGRAM = Path(__file__).with_name("child_program.py")


def child_program(*habits: str) -> tuple[str, ...]:
    """The command of a program to supervise; see `child_program.py` for its habits."""
    return (sys.executable, "-I", str(CHILD_PROGRAM), *habits)


def vanishes(pid: int, within_s: float) -> bool:
    """Whether process `pid`, not necessarily a child of ours, is over within that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], within_s)
    finally:
        os.close(descriptor)
    return bool(readable)


def children() -> dict[int, str]:
    """The child processes of this one, zombies included: pid and state."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid():
            found[int(stat.parent.name)] = state
    return found
