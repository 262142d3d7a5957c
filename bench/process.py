"""A child process of the benchmark: pinned to its core, logged to a file, gone at the end.

A child ends when this process ends, for whatever reason (parent-death signal). It leads its own process
group, so that the processes that it starts end with it. A few lines of Python set this up in the child and
then become the program, so that no other code runs between fork and exec.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.accounting import Usage, family, memory_bytes, usage

__all__ = ["BenchProcess"]

_PR_SET_PDEATHSIG = 1
_GRACE_S = 3.0
_BECOME = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
parent, core, *argv = sys.argv[1:]
if os.getppid() != int(parent):
    sys.exit("the parent is gone")
os.sched_setaffinity(0, {{int(core)}})
os.execvp(argv[0], argv)
"""


class BenchProcess:
    def __init__(
        self, argv: Sequence[str], *, core: int, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        become = [sys.executable, "-S", "-c", _BECOME, str(os.getpid()), str(core)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*become, *argv],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<BenchProcess {self._process.pid}, exit code {self._process.poll()}>"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-300:]

    def family(self) -> list[int]:
        """The ids of the process and of those that it has started."""
        return family(self._process.pid)

    def usage(self) -> Usage:
        return usage(self.family())

    def memory_bytes(self) -> int:
        return memory_bytes(self.family())

    def stop(self) -> None:
        """Send SIGTERM to the process, and SIGKILL to its group if it does not end."""
        if not self.ended:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
