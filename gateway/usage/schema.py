"""The table of usage records, for both databases.

The primary key is the writer (a random id for each run of a gateway) and the number of its record. So a batch
can be written again if it is unknown whether it arrived. `day` is the UTC day of `time`, because queries are
by days.
"""

from __future__ import annotations

__all__ = ["VERSION", "create", "insert", "upgrade"]

VERSION = 2

_COLUMNS = {
    "writer": "TEXT NOT NULL",
    "number": "BIGINT NOT NULL",
    "day": "DAY NOT NULL",
    "time": "TIME NOT NULL",
    "request_id": "TEXT NOT NULL",
    "tenant": "TEXT NOT NULL",
    "key": "TEXT",
    "model": "TEXT NOT NULL",
    "backend": "TEXT",
    "path": "TEXT NOT NULL",
    "prompt_tokens": "BIGINT NOT NULL",
    "cached_tokens": "BIGINT NOT NULL",
    "completion_tokens": "BIGINT NOT NULL",
    "reasoning_tokens": "BIGINT NOT NULL",
    "partial": "BOOLEAN NOT NULL",
    "estimated": "BOOLEAN NOT NULL",
    "queue_ms": "DOUBLE PRECISION",
    "ttft_ms": "DOUBLE PRECISION",
    "duration_ms": "DOUBLE PRECISION NOT NULL",
    "status": "INTEGER NOT NULL",
    "outcome": "TEXT NOT NULL",
    "code": "TEXT",
}


def create(*, day: str, time: str) -> list[str]:
    """Return the statements that make the table. `day` and `time` are the database's types for them."""
    types = {"DAY NOT NULL": f"{day} NOT NULL", "TIME NOT NULL": f"{time} NOT NULL"}
    columns = [f"{name} {types.get(kind, kind)}" for name, kind in _COLUMNS.items()]
    return [
        f"CREATE TABLE IF NOT EXISTS slotgate_usage ({', '.join(columns)}, PRIMARY KEY (writer, number))",
        "CREATE INDEX IF NOT EXISTS slotgate_usage_by_day ON slotgate_usage (day, tenant)",
    ]


def upgrade(version: int) -> list[str]:
    """Return the statements that bring a table of an earlier version up to date."""
    if version >= 2:
        return []
    return [
        "ALTER TABLE slotgate_usage ADD COLUMN reasoning_tokens BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE slotgate_usage ADD COLUMN estimated BOOLEAN NOT NULL DEFAULT FALSE",
    ]


def insert(parameter: str) -> str:
    """Return the statement that inserts a row, and does nothing if its primary key exists."""
    values = ", ".join([parameter] * len(_COLUMNS))
    return f"INSERT INTO slotgate_usage ({', '.join(_COLUMNS)}) VALUES ({values}) ON CONFLICT DO NOTHING"
