"""How many lines of one kind the log gets: enough to see what is wrong, and not one for each of a flood.

A kind has `MOST` lines in `PERIOD_S` seconds. What is left out of a period is counted, and the period ends
with one line that has the counts: nothing is lost in silence. This module never awaits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import structlog

__all__ = ["MOST", "PERIOD_S", "LogLimiter"]

MOST: Final = 100
PERIOD_S: Final = 10.0
_MOST_KINDS: Final = 64
"""Told apart in one period; all others are one more."""
_OTHERS: Final = "others"
log = structlog.stdlib.get_logger("slotgate.access")


class LogLimiter:
    """Belongs to the running event loop; `flush` in the end."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        """Lines of this period, those that were left out included."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<LogLimiter {sum(self._asked.values())} asked, {sum(self._left_out.values())} left out>"

    def allows(self, kind: str) -> bool:
        """Whether another line of this kind may be written; counted if not."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self.flush)
        if kind not in self._asked and len(self._asked) >= _MOST_KINDS:
            kind = _OTHERS
        self._asked[kind] += 1
        return self._asked[kind] <= MOST

    def flush(self) -> None:
        """End the period, and say what it left out."""
        left_out = self._left_out
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if left_out:
            log.info("requests without a line of their own", left_out=left_out, within_s=PERIOD_S)

    @property
    def _left_out(self) -> dict[str, int]:
        return {kind: asked - MOST for kind, asked in sorted(self._asked.items()) if asked > MOST}
