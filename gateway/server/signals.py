"""SIGTERM and SIGINT: the first one asks the process to stop in order, the second one ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets.

    From then on, a second signal ends the process at once, even while the event loop is busy, and even after
    the block. The kernel then ends the child processes that are tied to this one. The default action of the
    signal would not do: process 1 of a container has none.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def stopped() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, _end)
        stop.set()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopped)
    try:
        yield stop
    finally:
        if (
            not stop.is_set()
        ):  # else the process is about to end, and a second signal must still end it at once
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
