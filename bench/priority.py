"""Raise priorities, so that other programs on the machine disturb the measurement less.

Time spent waiting behind other programs says nothing about a gateway. So while latency is measured, the
processes run in a real-time class: whenever one of them is ready, it gets its core at once. They sleep most
of that time. Only root may do this; without root the figures are those of ordinary processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["favour", "undisturbed"]

_NICE = -10


def favour() -> None:
    """Run this process, and those that it will start, at a higher priority than ordinary ones."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


@contextmanager
def undisturbed(pids: Iterable[int]) -> Iterator[None]:
    """Raise the priority of all threads of these processes during the block, also of new ones."""
    pids = list(pids)
    _set(pids, os.SCHED_RR, 1)
    try:
        yield
    finally:
        _set(pids, os.SCHED_OTHER, 0)


def _set(pids: list[int], policy: int, priority: int) -> None:
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
