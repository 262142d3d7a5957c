"""The last requests that ended, kept in memory as plain values for operators.

The history is an observer with state of its own. `status.py` only reads other objects.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from slotgate.gateway.http.context import RequestContext

__all__ = ["History"]

KEPT = 500
"""Number of requests that are kept. An older one is forgotten when a new one ends."""


class History:
    """Observes ended requests."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        """Number of requests that were ever put."""

    def __repr__(self) -> str:
        return f"<History of {len(self._entries)} requests>"

    def put(self, context: RequestContext) -> None:
        """Add a request that is over. Requests without a model (pages, health, status) are not kept."""
        if context.model is not None and context.ended_at is not None:
            self.count += 1
            facts = context.facts(context.ended_at)
            self._entries.appendleft({"ended_s": context.ended_at, "n": self.count, **facts})

    def newest(self, now: float, limit: int = KEPT) -> list[dict[str, Any]]:
        """Return the last requests with their age at `now`, the newest first; at most `limit` of them."""
        return [
            {name: value for name, value in entry.items() if name != "ended_s"}
            | {"age_s": round(now - entry["ended_s"], 3)}
            for entry in itertools.islice(self._entries, limit)
        ]
