"""Distinguishes a blocked event loop from a busy machine.

A turn of an event loop is blocked when its callbacks burn too much CPU, or when they wait inside a system
call (`time.sleep`, a file lock), which shows as a voluntary context switch. A turn that other processes only
preempted shows neither, so a loaded machine does not fail tests.
"""

from __future__ import annotations

import resource
import time


class BlockedLoopError(AssertionError):
    """A turn of the event loop took too long."""


class BlockingGuard:
    """Measures the turns of a loop.

    Call `begin()` when the loop starts to run callbacks, and `check()` when it is about to wait again.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.begin()

    def begin(self) -> None:
        self._wall = time.perf_counter()
        self._cpu, self._waits = _thread_usage()

    def check(self) -> None:
        wall = time.perf_counter() - self._wall
        if wall <= self._limit_s:
            return
        cpu, waits = _thread_usage()
        burnt = cpu - self._cpu
        if burnt > self._limit_s or waits > self._waits:
            self.begin()
            raise BlockedLoopError(f"the loop was blocked for {wall:.3f} s ({burnt:.3f} s of it CPU)")


def _thread_usage() -> tuple[float, int]:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw
