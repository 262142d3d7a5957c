"""PostgreSQL only: a server that goes away, passwords, a missing driver."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage import (
    StoreError,
    StoreFault,
    UsageQuery,
    UsageRecorder,
    UsageRow,
    UsageStore,
    store_of,
)
from slotgate.gateway.usage.postgres import PostgresStore
from tests.support.logged import logged
from tests.support.usage import PostgresServer, postgres_programs, postgres_server, record

WITHIN_S = 30.0
NOWHERE = "postgresql://me:s3cr%65t@127.0.0.1:1/usage?sslpassword=s3cr"


def opened(url: str) -> UsageStore:
    store = store_of(UsageSettings(store=url))
    assert store is not None
    return store


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with postgres_server(programs) as server:
        yield server


def test_a_server_that_was_away_gets_all_records(own_postgres: PostgresServer) -> None:
    postgres = own_postgres
    store = opened(postgres.fresh())
    store.prepare()
    recorder = UsageRecorder(store, interval_s=0.01, longest_pause_s=0.1)
    recorder.start()
    with logged() as log:
        recorder.put(record(1))
        assert recorder.flush(WITHIN_S)
        postgres.stop()
        try:
            recorder.put(record(2))
            assert not recorder.flush(0.5)
        finally:
            postgres.start()
        assert recorder.flush(WITHIN_S)
        assert recorder.stop(WITHIN_S) == 0
    assert store.totals(UsageQuery.parse(""))[0].sums[0] == 2
    assert len(log.of("usage can be written again")) == 1
    assert "s3cret" not in log.text


def test_gateways_that_start_together_create_one_table(postgres: PostgresServer) -> None:
    url = postgres.fresh()
    failed: list[Exception] = []

    def start(name: str) -> None:
        store = opened(url)
        try:
            store.prepare()
            store.write([UsageRow(name, 1, record(1))])
        except Exception as error:
            failed.append(error)
        store.close()

    gateways = [threading.Thread(target=start, args=(f"w{number}",)) for number in range(6)]
    for gateway in gateways:
        gateway.start()
    for gateway in gateways:
        gateway.join(WITHIN_S)
    assert failed == []
    assert opened(url).totals(UsageQuery.parse(""))[0].sums[0] == 6


def test_place_and_errors_show_no_password() -> None:
    store = opened(NOWHERE)
    with pytest.raises(StoreError) as failed:
        store.prepare()
    assert store.place == "postgresql://127.0.0.1:1/usage"
    for text in (str(failed.value), repr(store), repr(UsageSettings(store=NOWHERE)), store.place):
        assert "s3cr" not in text


def test_a_missing_driver_is_a_fault_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    store = PostgresStore("postgresql://localhost/usage", "postgresql://localhost/usage")
    assert "psycopg[binary]" in (store.fault() or "")
    with pytest.raises(StoreFault, match="pip install"):
        store.prepare()
