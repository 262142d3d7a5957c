"""The keys that `slotgate run` keeps between its runs."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from slotgate.gateway.tools.run.kept_keys import KeysError, RunKeys, load_or_make_keys, state_dir


def test_run_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    first = load_or_make_keys(tmp_path / "deep" / "slotgate")
    assert first == load_or_make_keys(tmp_path / "deep" / "slotgate")
    assert first.client.startswith("sg-")
    assert first.operator.startswith("sg-")
    assert first.client != first.operator


def test_run_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "slotgate"
    load_or_make_keys(directory)
    [file] = directory.iterdir()
    assert (directory.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_permissions_that_others_opened_are_closed_again(tmp_path: Path) -> None:
    directory = tmp_path / "slotgate"
    load_or_make_keys(directory)
    [file] = directory.iterdir()
    directory.chmod(0o755)
    file.chmod(0o644)
    load_or_make_keys(directory)
    assert (directory.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_concurrent_first_runs_get_the_same_keys(tmp_path: Path) -> None:
    found: list[RunKeys] = []
    together = threading.Barrier(8)

    def start() -> None:
        together.wait()
        found.append(load_or_make_keys(tmp_path / "slotgate"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(list((tmp_path / "slotgate").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"5", b"{}", b'{"client": 1, "operator": "sg-x"}'])
def test_a_damaged_file_is_reported_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(KeysError, match="without it, new keys are made"):
        load_or_make_keys(tmp_path)
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeysError, match=r"cannot keep keys in .*: Not a directory"):
        load_or_make_keys(tmp_path / "file" / "slotgate")


def test_run_keys_are_not_in_their_repr() -> None:
    keys = RunKeys("sg-client-secret", "sg-operator-secret")
    assert "secret" not in f"{keys} {keys!r}"
    assert [field.name for field in dataclasses.fields(keys)] == ["client", "operator"]


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/a"}, "/state/slotgate"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/a"}, "/home/a/.local/state/slotgate"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/a"}, "/home/a/.local/state/slotgate"),
        ({"HOME": "/home/a"}, "/home/a/.local/state/slotgate"),
        ({}, f"{Path.home()}/.local/state/slotgate"),
    ],
)
def test_the_state_directory_follows_the_xdg_specification(environ: dict[str, str], directory: str) -> None:
    assert state_dir(environ) == Path(directory)
