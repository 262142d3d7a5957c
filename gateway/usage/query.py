"""Queries of usage records: sums over a range of days, grouped by columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

__all__ = ["DEFAULT_GROUP", "GROUPS", "SUMS", "UsageQuery", "UsageTotal"]

GROUPS = ("tenant", "key", "model", "backend", "day", "outcome")
DEFAULT_GROUP = "tenant,model,day"
SUMS = {
    "requests": "COUNT(*)",
    "errors": "SUM(CASE WHEN outcome = 'error' THEN 1 ELSE 0 END)",
    "partial": "SUM(CASE WHEN partial THEN 1 ELSE 0 END)",
    "prompt_tokens": "SUM(prompt_tokens)",
    "cached_tokens": "SUM(cached_tokens)",
    "completion_tokens": "SUM(completion_tokens)",
    "reasoning_tokens": "SUM(reasoning_tokens)",
    "estimated": "SUM(CASE WHEN estimated THEN 1 ELSE 0 END)",
}
"""Name -> SQL expression of each sum, in the order of the output. The time in the queue follows them."""
MOST_GROUPS = 10_000


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The sums of one group.

    `group` has a value for each column; the key is None for requests without one.
    """

    group: tuple[str | None, ...]
    sums: tuple[int, ...]
    queue_ms: float

    @property
    def queue_ms_mean(self) -> float:
        return round(self.queue_ms / self.sums[0], 1) if self.sums[0] else 0.0

    def facts(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {
            **dict(zip(names, self.group, strict=True)),
            **dict(zip(SUMS, self.sums, strict=True)),
            "queue_ms": round(self.queue_ms, 1),
            "queue_ms_mean": self.queue_ms_mean,
        }


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """`first` and `last` are UTC days, both included. None means no bound."""

    group: tuple[str, ...]
    first: date | None = None
    last: date | None = None
    most: int = MOST_GROUPS
    """Largest number of groups in the answer. An answer with as many groups may be incomplete."""

    @classmethod
    def parse(
        cls, group: str = DEFAULT_GROUP, first: str = "", last: str = "", *, most: int = MOST_GROUPS
    ) -> UsageQuery:
        """Parse the text of a query. An empty group means one total. Raises `ValueError` with a message."""
        names = tuple(group.split(",")) if group else ()
        for name in names:
            if name not in GROUPS:
                raise ValueError(f"group by {', '.join(GROUPS)}; {name[:40]!a} is none of them")
        if len(set(names)) < len(names):
            raise ValueError(f"{group[:80]!a} names a column twice")
        question = cls(names, _day("from", first), _day("to", last), most)
        if question.first and question.last and question.first > question.last:
            raise ValueError("from is later than to")
        return question

    def sql(self) -> tuple[str, list[str | int]]:
        """Return the statement, which is the same for both databases, with `?` for parameters, and these."""
        sums = [f"CAST({expression} AS BIGINT)" for expression in SUMS.values()]
        columns = [*self.group, *sums, "CAST(COALESCE(SUM(queue_ms), 0) AS DOUBLE PRECISION)"]
        bounds = [("day >= ?", self.first), ("day <= ?", self.last)]
        where = " AND ".join(text for text, day in bounds if day)
        by = ", ".join(self.group)
        text = f"SELECT {', '.join(columns)} FROM slotgate_usage"
        text += f" WHERE {where}" if where else ""
        text += f" GROUP BY {by} ORDER BY {by}" if by else ""
        return f"{text} LIMIT ?", [*(day.isoformat() for _, day in bounds if day), self.most]

    def total(self, row: tuple[Any, ...]) -> UsageTotal:
        """Convert a row of the answer."""
        width = len(self.group)
        group = tuple(value.isoformat() if isinstance(value, date) else value for value in row[:width])
        return UsageTotal(group, tuple(value or 0 for value in row[width:-1]), row[-1])


TOKENS_OF_A_DAY = (
    "SELECT tenant, CAST(SUM(prompt_tokens + completion_tokens) AS BIGINT) FROM slotgate_usage"
    " WHERE day = ? GROUP BY tenant"
)


def _day(name: str, text: str) -> date | None:
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError as wrong:
        raise ValueError(f"{name} is a day such as 2027-01-31, not {text[:40]!a}") from wrong
    if day.isoformat() != text:
        raise ValueError(f"{name} is a day such as 2027-01-31, not {text[:40]!a}")
    return day
