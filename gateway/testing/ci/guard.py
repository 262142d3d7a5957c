"""Runs a command in a session of its own, and ends all processes that the command has started.

It ends them when the command is over, at SIGUSR1, and when the process that started this file is gone.

    python -I -S guard.py PARENT_PID PROGRAM [ARGUMENT ...]

A test command starts servers and browsers. The kernel's parent-death signal reaches only the process that
asked for it. So this process stays between: it asks for the signal, and ends the others when it comes.
Processes in sessions of their own (Playwright starts some) are ended too: on Linux, orphans of the command
become children of this process and not of init.

This file uses only the standard library, because it runs with `-I -S`. The command gets SIGTERM as a member
of the process group, so this process ignores it unless its parent is gone. The exit status is the command's,
as a shell gives it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

__all__ = ["descendants", "end_descendants", "main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100
"""The number of passes over the processes, because processes may start others while they are ended."""
CANNOT_START = 127
"""The exit code of a shell for a command that cannot be started."""


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    if os.getsid(0) != os.getpid():
        os.setsid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent or number == signal.SIGUSR1:
            end_descendants()
            os.killpg(0, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, look)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    look(0, None)  # the parent may have gone before it was watched
    try:
        code = subprocess.call(command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return CANNOT_START
    end_descendants()
    return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """Kill all descendants, in any process group. Does nothing on systems without /proc."""
    for _ in range(_ROUNDS):
        found = descendants()
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended, or belongs to another user
                continue
        time.sleep(0.01)


def descendants() -> list[int]:
    """Return the pids of all living descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):  # not a process, or it has ended
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, []))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
