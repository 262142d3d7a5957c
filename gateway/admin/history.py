"""The last requests, as the operator sees them: plain facts, kept in memory, the oldest forgotten."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from slotgate.gateway.http.context import RequestContext

__all__ = ["History"]

KEPT = 500


class History:
    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        """How many were ever put."""

    def __repr__(self) -> str:
        return f"<History of {len(self._entries)} requests>"

    def put(self, context: RequestContext) -> None:
        """The request is over. Those that asked for no model (pages, health, status) are not kept."""
        if context.model is not None and context.ended_at is not None:
            self.count += 1
            facts = context.facts(context.ended_at)
            self._entries.appendleft({"ended_s": context.ended_at, "n": self.count, **facts})

    def newest(self, now: float, most: int = KEPT) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in entry.items() if name != "ended_s"}
            | {"age_s": round(now - entry["ended_s"], 3)}
            for entry in itertools.islice(self._entries, most)
        ]
