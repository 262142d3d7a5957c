"""Usage records in a SQLite file. In WAL mode readers and the writer do not wait for each other.

With `synchronous=NORMAL` written records survive a crash of the process; a crash of the machine may lose the
last moment. If the file is deleted or replaced while the gateway runs, the store notices it and writes the
batch again.

The records say who asked how much and when. So a new file belongs to its owner alone (mode 0600), and SQLite
gives its `-wal` and `-shm` files the mode of the file. A file that exists keeps its mode, because an operator
may have opened it for others, such as a reporting tool.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date
from pathlib import Path
from urllib.parse import quote

from slotgate.gateway.usage import schema
from slotgate.gateway.usage.query import TOKENS_OF_A_DAY, UsageQuery, UsageTotal
from slotgate.gateway.usage.store import StoreError, StoreFault, UsageRow

__all__ = ["SqliteStore"]

BUSY_S = 1.0
"""Longest wait of one statement for another process. The recorder retries."""
_LOOK_EVERY = 10_000
"""Instructions of SQLite's virtual machine between two checks of the time: a few milliseconds."""
_FAULTS = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)
_PRIMARY = 0xFF
"""Mask for the primary part of an extended error code."""


class SqliteStore:
    """Stores usage records in a SQLite file (see `UsageStore`)."""

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._writing: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file that is open for writing."""

    def __repr__(self) -> str:
        return f"<SqliteStore {self._file}>"

    @property
    def place(self) -> str:
        return f"the file {self._file}"

    def fault(self) -> str | None:
        folder = self._file.parent
        if not folder.is_dir():
            return f"there is no folder {folder}"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"nothing can be written in the folder {folder}"
        if self._file.is_dir():
            return f"{self._file} is a folder"
        if self._file.exists() and not os.access(self._file, os.R_OK | os.W_OK):
            return f"{self._file} cannot be written"
        return None

    def prepare(self) -> None:
        if fault := self.fault():
            raise StoreFault(fault)
        with self._translated(), closing(self._connect()):
            pass

    def write(self, rows: Sequence[UsageRow]) -> None:
        try:
            with self._translated():
                self._insert(self._connection(), rows)
            if self._on_disk() != self._identity:
                raise StoreError(f"{self._file} was deleted or replaced")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        with self._reading() as connection:
            return dict(connection.execute(TOKENS_OF_A_DAY, [day.isoformat()]))

    def totals(self, question: UsageQuery, *, within_s: float | None = None) -> list[UsageTotal]:
        with self._reading(within_s) as connection:
            return [question.total(row) for row in connection.execute(*question.sql())]

    # -- connections

    def _connection(self) -> sqlite3.Connection:
        if self._writing is not None and self._on_disk() != self._identity:
            self.close()
        if self._writing is None:
            self._writing = self._connect()
            self._identity = self._on_disk()
        return self._writing

    def _connect(self) -> sqlite3.Connection:
        self._create()
        connection = self._opened("rwc")
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            self._bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Create the file for its owner alone if it is missing.

        An existing file must not be opened here: closing it would drop the locks of SQLite in this process
        (https://www.sqlite.org/howtocorrupt.html, 2.2). If this fails, SQLite fails too and says why.
        """
        with suppress(OSError):
            target = os.path.realpath(self._file)  # a link may point to a file that is not there yet
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def _opened(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._file))}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        if self._version(connection) == schema.VERSION:
            return
        with _transaction(connection):
            version = self._version(connection)
            if version < schema.VERSION:
                new = schema.create(day="TEXT", time="TEXT")
                for statement in schema.upgrade(version) if version else new:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {schema.VERSION}")

    def _version(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > schema.VERSION:
            raise StoreFault(f"{self._file} was written by a newer slotgate")
        return version

    def _on_disk(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _reading(self, within_s: float | None = None) -> Iterator[sqlite3.Connection]:
        if not self._file.exists():
            raise StoreFault(f"there is no file {self._file}")
        with self._translated(), closing(self._opened("ro")) as connection:
            if self._version(connection) < schema.VERSION:
                self._connect().close()
            if within_s is not None:
                end = time.monotonic() + within_s
                connection.set_progress_handler(lambda: time.monotonic() > end, _LOOK_EVERY)
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = StoreFault if _code(error) in _FAULTS else StoreError
            raise kind(f"{self._file}: {error}") from error

    @staticmethod
    def _insert(connection: sqlite3.Connection, rows: Sequence[UsageRow]) -> None:
        with _transaction(connection):
            connection.executemany(schema.insert("?"), map(_values, rows))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _values(row: UsageRow) -> tuple[object, ...]:
    record = row.record
    time_text = record.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (row.writer, row.number, record.day.isoformat(), time_text, *record[1:])


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY
