"""Runs a command in a session of its own, and ends all that it has started: when it is over, when it is told
to (SIGUSR1), and when whoever started this file is gone.

    python -I -S guard.py PARENT_PID PROGRAM [ARGUMENT ...]

A test command starts servers and browsers. The kernel's parent-death signal reaches only the process that
asked for it, so this one stays between: it asks, and ends the rest when the signal comes. What leaves the
group (Playwright and others start servers in sessions of their own) is not lost: on Linux orphans of the
command become children of this process, not of init.

Rules: the standard library only, nothing of this package (it runs with `-I -S`). SIGTERM is the command's,
which gets it as a member of the group; here it means something only when the parent is gone. The exit status
is the command's, as a shell gives it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100
"""Looks for what is left: processes may start others while they are ended."""
CANNOT_START = 127
"""As in a shell."""


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
    look(0, None)  # it may have gone before it could be watched
    try:
        code = subprocess.call(command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return CANNOT_START
    end_descendants()
    return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """All that live, whatever group they are in; nothing where there is no /proc."""
    for _ in range(_ROUNDS):
        found = descendants()
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone by itself, or somebody else's
                continue
        time.sleep(0.01)


def descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):  # no process, or none any more
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, []))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
