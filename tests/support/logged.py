"""Collects the log of a block: structlog's events and the standard library's records.

It collects from DEBUG on, so that tests find secrets in any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs


class Log(logging.Handler):
    """`events` are slotgate's, `records` are those of libraries."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__(logging.DEBUG)
        self.events = events
        self.records: list[logging.LogRecord] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def errors(self) -> list[str]:
        """Entries at ERROR or above, or with a traceback. They mean a bug or a broken protocol."""
        ours = [
            str(event)
            for event in self.events
            if event["log_level"] in ("error", "critical") or event.get("exc_info")
        ]
        theirs = [self.format(record) for record in self.records if record.levelno >= logging.ERROR]
        return ours + theirs

    @property
    def text(self) -> str:
        """The whole log as text, including tracebacks."""
        return "\n".join([*map(str, self.events), *map(self.format, self.records)])

    def expect(self, event: str) -> None:
        """Remove an error event that the test expects."""
        found = [entry for entry in self.events if entry["event"] == event]
        assert len(found) == 1, self.text
        self.events.remove(found[0])

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return slotgate's events of this name."""
        return [entry for entry in self.events if entry["event"] == event]


@contextmanager
def logged() -> Iterator[Log]:
    root = logging.getLogger()
    level = root.level
    with capture_logs() as events:
        log = Log(events)
        root.addHandler(log)
        root.setLevel(logging.DEBUG)
        try:
            yield log
        finally:
            root.setLevel(level)
            root.removeHandler(log)
