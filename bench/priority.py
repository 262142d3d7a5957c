"""Measuring on a machine that does something else as well.

Time in a queue behind other programs says nothing about a gateway. While latency is measured, and only then
(the processes that matter sleep most of that time), they run in a real-time class: whenever one of them is
ready it has its core at once. Only root may do this; without it the figures are those of an ordinary process.
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
    """This process, and those that it will start, before ordinary ones."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


@contextmanager
def undisturbed(pids: Iterable[int]) -> Iterator[None]:
    """All threads of these processes, those included that are started inside."""
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
