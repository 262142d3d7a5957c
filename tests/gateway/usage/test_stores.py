"""The behaviour of every store: each test runs on SQLite, and on a real PostgreSQL if there is one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import date
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage import (
    GROUPS,
    StoreFault,
    UsageQuery,
    UsageRecord,
    UsageRow,
    UsageStore,
    schema,
    store_of,
)
from tests.support.usage import DAY, DAY_S, NOON, PostgresServer, record


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> PostgresServer | None:
    found: PostgresServer | None = None
    if request.param == "postgresql":
        found = request.getfixturevalue("postgres")
    return found


@pytest.fixture
def store(server: PostgresServer | None, tmp_path: Path) -> Iterator[UsageStore]:
    url = f"sqlite:///{tmp_path / 'usage.db'}" if server is None else server.fresh()
    found = store_of(UsageSettings(store=url))
    assert found is not None
    found.prepare()
    yield found
    found.close()


def rows(*records: UsageRecord, writer: str = "w", first: int = 1) -> list[UsageRow]:
    return [UsageRow(writer, number, kept) for number, kept in enumerate(records, first)]


def sums(store: UsageStore, group: str = "", first: str = "", last: str = "") -> list[tuple[object, ...]]:
    return [(*total.group, *total.sums) for total in store.totals(UsageQuery.parse(group, first, last))]


def test_a_new_store_is_empty(store: UsageStore) -> None:
    assert store.tokens_by_tenant(DAY) == {}
    assert sums(store, "tenant") == []
    assert sums(store) == [(0, 0, 0, 0, 0, 0, 0, 0)]


def test_sums_are_grouped_by_the_columns_of_the_query(store: UsageStore) -> None:
    store.write(
        rows(
            record(1),
            record(2, tenant="b", key="ci", outcome="error", status=502, code="upstream_broken"),
            record(3, ended_at=NOON + DAY_S, partial=True, outcome="client_gone", queue_ms=None),
        )
    )
    assert sums(store) == [(3, 1, 1, 30, 12, 15, 0, 0)]
    assert sums(store, "tenant") == [("a", 2, 0, 1, 20, 8, 10, 0, 0), ("b", 1, 1, 0, 10, 4, 5, 0, 0)]
    assert sums(store, "day") == [
        ("2027-01-15", 2, 1, 0, 20, 8, 10, 0, 0),
        ("2027-01-16", 1, 0, 1, 10, 4, 5, 0, 0),
    ]
    assert {total.group for total in store.totals(UsageQuery.parse("key,outcome"))} == {
        (None, "ok"),
        ("ci", "error"),
        (None, "client_gone"),
    }
    assert sums(store, "tenant", "2027-01-16") == [("a", 1, 0, 1, 10, 4, 5, 0, 0)]
    assert sums(store, "tenant", "", "2027-01-14") == []
    assert [total.queue_ms for total in store.totals(UsageQuery.parse("day"))] == [4.0, 0.0]


def test_a_batch_that_is_written_twice_counts_once(store: UsageStore) -> None:
    batch = rows(record(1), record(2))
    store.write(batch)
    store.write([*batch, *rows(record(3), first=3)])
    store.write(rows(record(4), writer="another"))
    assert sums(store)[0][0] == 4


def test_tokens_of_a_day_are_prompts_and_answers_of_each_tenant(store: UsageStore) -> None:
    midnight = NOON - 8 * 3600
    store.write(
        rows(
            record(1, ended_at=midnight - 0.001, prompt_tokens=1000),
            record(2, ended_at=midnight),
            record(3, ended_at=midnight + DAY_S - 0.001, completion_tokens=2**53),
            record(4, ended_at=midnight + DAY_S),
            record(5, tenant="b"),
        )
    )
    assert store.tokens_by_tenant(DAY) == {"a": 15 + 10 + 2**53, "b": 15}


def test_written_records_are_visible_to_other_connections(store: UsageStore) -> None:
    store.write(rows(record(1)))
    store.close()
    store.prepare()
    store.write(rows(record(2), writer="later"))
    assert sums(store)[0][0] == 2


RECORDS = st.builds(
    record,
    tenant=st.sampled_from(["a", "b", "ü\u2028"]),
    key=st.sampled_from([None, "ci", "'; DROP TABLE slotgate_usage; --"]),
    ended_at=st.floats(NOON, NOON + 3 * DAY_S),
    outcome=st.sampled_from(["ok", "error", "client_gone"]),
    prompt_tokens=st.integers(0, 2**53),
    completion_tokens=st.integers(0, 1000),
    partial=st.booleans(),
)


@pytest.mark.parametrize("group", GROUPS)
@examples(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, max_size=20))
def test_sums_match_the_records(tmp_path: Path, group: str, records: list[UsageRecord]) -> None:
    file = tmp_path / "usage.db"
    for left in tmp_path.glob("usage.db*"):
        left.unlink()
    store = store_of(UsageSettings(store=f"sqlite:///{file}"))
    assert store is not None
    store.prepare()
    store.write(rows(*records))
    store.close()

    def value(kept: UsageRecord) -> str:
        return str(kept.day) if group == "day" else getattr(kept, group) or ""

    expected = [
        (
            name,
            len(each),
            sum(kept.prompt_tokens for kept in each),
            sum(kept.outcome == "error" for kept in each),
        )
        for name, found in groupby(sorted(records, key=value), value)
        for each in [list(found)]
    ]
    told = [
        (total.group[0] or "", total.sums[0], total.sums[3], total.sums[1])
        for total in store.totals(UsageQuery.parse(group))
    ]
    assert sorted(told) == sorted(expected)


@pytest.mark.parametrize("day", [date(1970, 1, 1), date(9999, 12, 31)])
def test_distant_days_are_stored(store: UsageStore, day: date) -> None:
    assert store.tokens_by_tenant(day) == {}


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:

    file = tmp_path / "usage.db"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    store = store_of(UsageSettings(store=f"sqlite:///{file}"))
    assert store is not None
    with pytest.raises(StoreFault, match="newer slotgate"):
        store.prepare()


def test_table_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """A reader updates the table, too, because it may come before a gateway of the new version."""
    file = tmp_path / "usage.db"
    columns = [name for name in schema._COLUMNS if name not in ("reasoning_tokens", "estimated")]
    connection = sqlite3.connect(file)
    connection.execute(f"CREATE TABLE slotgate_usage ({', '.join(columns)}, PRIMARY KEY (writer, number))")
    row = ["w", 1, "2027-01-15", "t", "r", "a", None, "m", "gpu0", "/", 10, 4, 5, 0, 1.0, 1.0, 2.0, 200, "ok"]
    marks = ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO slotgate_usage VALUES ({marks})", [*row, None])
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    store = store_of(UsageSettings(store=f"sqlite:///{file}"))
    assert store is not None
    assert sums(store) == [(1, 0, 0, 10, 4, 5, 0, 0)]
    store.write([UsageRow("w", 2, record(reasoning_tokens=2, estimated=True))])
    store.close()
    assert sums(store) == [(2, 0, 0, 20, 8, 10, 2, 1)]
