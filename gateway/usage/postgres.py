"""Usage records in PostgreSQL, which gateways on several machines may share.

The driver comes with the extra `postgres` and is imported when the store is opened. Every wait has a limit on
both sides of the connection, so that a server that has vanished is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from slotgate.gateway.usage import schema
from slotgate.gateway.usage.query import TOKENS_OF_A_DAY, UsageQuery, UsageTotal
from slotgate.gateway.usage.store import StoreError, StoreFault, UsageRow

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresStore"]

CONNECT_S = 5
STATEMENT_S = 10.0
_LOCK = 0x736C6F7467617465
"""Advisory lock, held while the table is made, so that only one of several starting gateways makes it."""
_NO_DRIVER = "a postgresql:// store needs the driver psycopg: pip install 'psycopg[binary]'"


class PostgresStore:
    """Stores usage records in PostgreSQL (see `UsageStore`). `place` is the URL without secrets."""

    def __init__(self, url: str, place: str) -> None:
        self._url = url
        self.place = place
        password = urlsplit(url).password or ""
        self._secrets = [secret for secret in {password, unquote(password)} if secret]
        self._writing: psycopg.Connection[Any] | None = None

    def __repr__(self) -> str:
        return f"<PostgresStore {self.place}>"

    def fault(self) -> str | None:
        try:
            import psycopg  # noqa: F401  only to see that it can be imported
        except ImportError:
            return _NO_DRIVER
        return None

    def prepare(self) -> None:
        with self._translated(), self._connect() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            connection.execute(
                "CREATE TABLE IF NOT EXISTS slotgate_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL)"
            )
            found = connection.execute("SELECT version FROM slotgate_schema WHERE part = 'usage'").fetchone()
            if found is not None and found[0] > schema.VERSION:
                raise StoreFault(f"the table in {self.place} was made by a newer slotgate")
            if found is not None and found[0] < schema.VERSION:
                for statement in schema.upgrade(found[0]):
                    connection.execute(statement.encode())
                connection.execute(
                    "UPDATE slotgate_schema SET version = %s WHERE part = 'usage'", [schema.VERSION]
                )
            if found is None:
                for statement in schema.create(day="DATE", time="TIMESTAMPTZ"):
                    connection.execute(statement.encode())
                connection.execute("INSERT INTO slotgate_schema VALUES ('usage', %s)", [schema.VERSION])

    def write(self, rows: Sequence[UsageRow]) -> None:
        try:
            if self._writing is None:
                self.prepare()
                with self._translated():
                    self._writing = self._connect()
            with self._translated(), self._writing.transaction(), self._writing.cursor() as cursor:
                cursor.executemany(schema.insert("%s").encode(), map(_values, rows))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        return dict(self._rows(TOKENS_OF_A_DAY, [day.isoformat()]))

    def totals(self, question: UsageQuery, *, within_s: float | None = None) -> list[UsageTotal]:
        text, parameters = question.sql()
        return [question.total(row) for row in self._rows(text, parameters, within_s)]

    def _rows(
        self, text: str, parameters: list[Any], within_s: float | None = STATEMENT_S
    ) -> list[tuple[Any, ...]]:
        with self._translated(), self._connect(within_s) as connection:
            return connection.execute(text.replace("?", "%s").encode(), parameters).fetchall()

    def _connect(self, statement_s: float | None = STATEMENT_S) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        limit_ms = int((statement_s or 0) * 1000)  # 0 means no limit
        return psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=int(STATEMENT_S * 1000),
            keepalives_idle=int(STATEMENT_S),
            application_name="slotgate",
            options=f"-c statement_timeout={limit_ms} -c TimeZone=UTC",
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            import psycopg
        except ImportError as missing:
            raise StoreFault(_NO_DRIVER) from missing
        try:
            yield
        except psycopg.Error as error:
            raise StoreError(
                self._without_secrets(f"{self.place}: {' '.join(str(error).split())}")
            ) from error

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _values(row: UsageRow) -> tuple[object, ...]:
    record = row.record
    return (row.writer, row.number, record.day, record.time, *record[1:])
