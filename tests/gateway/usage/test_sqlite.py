"""A SQLite file while a gateway writes to it: locked, deleted, replaced, unreadable."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slotgate.gateway.usage import StoreError, StoreFault, UsageQuery, UsageRecorder, UsageRow
from slotgate.gateway.usage.sqlite import SqliteStore
from tests.support.logged import logged
from tests.support.usage import record

WITHIN_S = 20.0


def count(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        found: int = connection.execute("SELECT COUNT(*) FROM slotgate_usage").fetchone()[0]
        return found


def test_readers_and_a_writer_do_not_wait_for_each_other(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "usage.db")
    store.prepare()
    with closing(sqlite3.connect(tmp_path / "usage.db")) as reader:
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM slotgate_usage").fetchone()
        store.write([UsageRow("w", 1, record(1))])
        assert count(tmp_path / "usage.db") == 1
    store.close()


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir() if file.is_file()}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("way", ["plain", "link", "deleted"])
def test_new_file_and_its_log_belong_to_their_owner_alone(tmp_path: Path, way: str) -> None:
    file = tmp_path / "usage.db"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if way == "link":
        file.symlink_to(folder / "usage.db")
    store = SqliteStore(file)
    store.prepare()
    if way == "deleted":
        file.unlink()
    store.write([UsageRow("w", 1, record(1))])
    found = modes(folder if way == "link" else tmp_path)
    assert found.keys() == {"usage.db", "usage.db-wal", "usage.db-shm"}
    assert set(found.values()) == {0o600}
    store.close()


@pytest.mark.usefixtures("usual_umask")
def test_existing_file_keeps_the_mode_that_its_operator_gave_it(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    SqliteStore(file).prepare()
    file.chmod(0o640)
    store = SqliteStore(file)
    store.prepare()
    store.write([UsageRow("w", 1, record(1))])
    assert set(modes(tmp_path).values()) == {0o640}
    store.close()


@pytest.mark.slow
def test_a_lock_delays_records_and_loses_none(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    store = SqliteStore(file)
    store.prepare()
    recorder = UsageRecorder(store, interval_s=0.01)
    with logged() as log, closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        recorder.start()
        recorder.put(record(1))
        assert not recorder.flush(1.5)
        assert store.totals(UsageQuery.parse(""))[0].sums[0] == 0  # reading goes on
        other.execute("COMMIT")
        assert recorder.flush(WITHIN_S)
        assert recorder.stop(WITHIN_S) == 0
    assert count(file) == 1
    assert "database is locked" in log.of("usage cannot be written")[0]["error"]


@pytest.mark.parametrize("instead", [None, b"", b"this is no database, whatever its name says" * 40])
def test_a_deleted_or_replaced_file_is_noticed_and_created_again(
    tmp_path: Path, instead: bytes | None
) -> None:
    file = tmp_path / "usage.db"
    store = SqliteStore(file)
    store.prepare()
    store.write([UsageRow("w", 1, record(1))])
    for part in tmp_path.glob("usage.db*"):
        part.unlink()
    if instead is not None:
        file.write_bytes(instead)
    if instead:
        with pytest.raises(StoreFault, match="not a database"):
            store.write([UsageRow("w", 2, record(2))])
        file.unlink()
    store.write([UsageRow("w", 2, record(2))])
    assert count(file) == 1
    store.close()


def test_a_missing_folder_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    store = SqliteStore(folder / "usage.db")
    store.prepare()
    store.write([UsageRow("w", 1, record(1))])
    folder.rename(tmp_path / "away")
    with pytest.raises(StoreError):
        store.write([UsageRow("w", 2, record(2))])
    (tmp_path / "away").rename(folder)
    store.write([UsageRow("w", 2, record(2))])
    assert count(folder / "usage.db") == 2
    store.close()


def test_an_impossible_file_is_a_fault_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for file, words in (
        (tmp_path / "nowhere" / "usage.db", f"there is no folder {tmp_path / 'nowhere'}"),
        (tmp_path / "file" / "usage.db", f"there is no folder {tmp_path / 'file'}"),
        (tmp_path / "folder", f"{tmp_path / 'folder'} is a folder"),
    ):
        store = SqliteStore(file)
        assert store.fault() == words
        with pytest.raises(StoreFault, match=words):
            store.prepare()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert SqliteStore(tmp_path / "usage.db").fault() == f"nothing can be written in the folder {tmp_path}"


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "a b?mode=memory#%41.db"
    store = SqliteStore(file)
    store.prepare()
    assert count(file) == 0


def test_reading_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreFault, match="there is no file"):
        SqliteStore(tmp_path / "usage.db").totals(UsageQuery.parse(""))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_query_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "usage.db")
    store.prepare()
    store.write([UsageRow("w", number, record(number)) for number in range(20_000)])
    with pytest.raises(StoreError, match="interrupted"):
        store.totals(UsageQuery.parse("tenant,model"), within_s=0.0)
    store.close()
