"""Starts a program in its own place, and has the kernel kill that program when the parent process ends.

    python -I -S exec_wrapper.py PARENT_PID PROGRAM [ARGUMENT ...]

It does the work of `preexec_fn`, but as a program of its own, because Python code must not run in a forked
copy of a process that has threads. `exec` keeps the pid, so the pid of this file is the pid of PROGRAM.

This file uses only the standard library and nothing of this package, because it runs with `-I -S`. It writes
at most one line, to stderr. PROGRAM gets the environment of this file (Python adds LC_CTYPE where no locale
is set, PEP 538).

On Linux the kernel kills PROGRAM when the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG), so it
has to be started from a thread that lives as long as the process: here, the one of the event loop.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["die_with_parent", "leave_terminal", "main", "restore_signals"]

PR_SET_PDEATHSIG = 1

ORPHANED = 125
"""Exit status when the parent was gone before it could be watched."""

CANNOT_START = 127
"""Exit status when PROGRAM could not be executed, as in a shell."""


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    die_with_parent()
    if os.getppid() != parent:  # it ended before the line above, so no signal will come
        return ORPHANED
    leave_terminal()
    restore_signals()
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    return CANNOT_START


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent ends, also if the parent is killed."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415  not every platform's Python has it, and only Linux needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def leave_terminal() -> None:
    """Start a new session, so that Ctrl-C reaches only the parent, which then stops PROGRAM."""
    if os.getsid(0) != os.getpid():
        os.setsid()


def restore_signals() -> None:
    """Restore the default of every signal. Ignored signals and the mask would survive exec: Python ignores
    SIGPIPE, and `nohup` ignores SIGHUP.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
