"""Runs a command in a session of its own, and ends all of it when whoever started this file is gone.

    python -I -S guard.py PARENT_PID PROGRAM [ARGUMENT ...]

A test command starts servers and browsers. The kernel's parent-death signal reaches only the process that
asked for it, so this one stays between: it asks, and kills its whole session's group when the signal comes.

Rules: the standard library only, nothing of this package (it runs with `-I -S`). SIGTERM is the command's,
which gets it as a member of the group; here it means something only when the parent is gone. The exit status
is the command's, as a shell gives it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1
CANNOT_START = 127
"""As in a shell."""


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    if os.getsid(0) != os.getpid():
        os.setsid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, look)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    look(0, None)  # it may have gone before it could be watched
    try:
        code = subprocess.call(command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return CANNOT_START
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
