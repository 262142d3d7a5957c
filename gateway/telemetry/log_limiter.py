"""Limit identical log lines, so that a flood of failing requests does not flood the log.

Each kind of line may be written `MOST` times in `PERIOD_S` seconds. Further lines are counted, and one line
at the end of the period gives the counts. This module never awaits.
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
"""Kinds that are counted separately in one period. All other kinds are counted together."""
_OTHERS: Final = "others"
log = structlog.stdlib.get_logger("slotgate.access")


class LogLimiter:
    """Belongs to the running event loop. Call `flush` at the end of the process."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        """Kind -> lines in this period, including those that were left out."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<LogLimiter {sum(self._asked.values())} asked, {sum(self._left_out.values())} left out>"

    def allows(self, kind: str) -> bool:
        """Count a line of this kind. Return True if it may be written."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self.flush)
        if kind not in self._asked and len(self._asked) >= _MOST_KINDS:
            kind = _OTHERS
        self._asked[kind] += 1
        return self._asked[kind] <= MOST

    def flush(self) -> None:
        """End the period, and log how many lines were left out."""
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
