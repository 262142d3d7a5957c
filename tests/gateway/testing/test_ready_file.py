"""A ready file exists only while the server is ready, and it is written whole."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from slotgate.gateway.testing.ready_file import ReadyFile


def test_the_file_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ReadyFile(path) as ready:
        ready.write({"key": "secret"})
        assert json.loads(path.read_text()) == {"key": "secret"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_earlier_run_is_removed_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("{}")
    with ReadyFile(path):
        assert not path.exists()


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with ReadyFile(tmp_path / "no" / "ready.json") as ready, pytest.raises(OSError, match="No such file"):
        ready.write({})
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_nothing_is_written() -> None:
    with ReadyFile(None) as ready:
        ready.write({"url": "x"})
