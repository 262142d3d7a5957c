"""What a program under test logged while a block ran: structlog's events and the standard library's records.

Everything is taken from DEBUG on, so that a secret in the least of them is found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs


class Log(logging.Handler):
    """`events` are ours, `records` are those of the libraries."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__(logging.DEBUG)
        self.events = events
        self.records: list[logging.LogRecord] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def errors(self) -> list[str]:
        """Whatever was logged at ERROR or above, or with a traceback: a fault of ours, a broken protocol."""
        ours = [
            str(event)
            for event in self.events
            if event["log_level"] in ("error", "critical") or event.get("exc_info")
        ]
        theirs = [self.format(record) for record in self.records if record.levelno >= logging.ERROR]
        return ours + theirs

    @property
    def text(self) -> str:
        """All of it, tracebacks included."""
        return "\n".join([*map(str, self.events), *map(self.format, self.records)])

    def expect(self, event: str) -> None:
        """One of ours that is an error, and meant to be."""
        found = [entry for entry in self.events if entry["event"] == event]
        assert len(found) == 1, self.text
        self.events.remove(found[0])

    def of(self, event: str) -> list[dict[str, Any]]:
        """Our events of this name."""
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
