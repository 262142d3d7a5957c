"""Becomes the program it is told to start, tied to the life of the process that started it.

    python -I -S exec_wrapper.py PARENT_PID PROGRAM [ARGUMENT ...]

Runs between fork and exec, as a program of its own: what `preexec_fn` would do, without running Python
in a forked copy of a process that has threads. The pid stays the same through `exec`, so whoever started
this file has started PROGRAM.

Rules: the standard library only, nothing of this package (it runs with `-I -S`); it says at most one line,
on stderr; the environment it was given is the environment of PROGRAM (Python adds LC_CTYPE where no
locale is set, PEP 538).

On Linux the kernel kills PROGRAM when the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG), so it
has to be started from a thread that lives as long as the process: here, the one of the event loop.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1

ORPHANED = 125
"""Exit status when the parent was gone before it could be watched."""

CANNOT_START = 127
"""Exit status when PROGRAM could not be executed, as in a shell."""


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    die_with_parent()
    if os.getppid() != parent:  # it went before the line above: no signal will come any more
        return ORPHANED
    leave_terminal()
    restore_signals()
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    return CANNOT_START


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel for a signal when the parent ends, whatever it ends of."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415  not every platform's Python has it, and only Linux needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def leave_terminal() -> None:
    """A session of its own: Ctrl-C in the terminal is for the parent, which then stops us in order."""
    if os.getsid(0) != os.getpid():
        os.setsid()


def restore_signals() -> None:
    """Ignored signals and the mask survive exec: Python ignores SIGPIPE, `nohup` ignores SIGHUP."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
