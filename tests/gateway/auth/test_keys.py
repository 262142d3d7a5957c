"""Keys: made, recognised, kept."""

import dataclasses
import datetime
import hashlib
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.auth.keys import KeyRing, hash_key, new_key
from slotgate.gateway.settings import TenantKeySettings
from slotgate.gateway.tools.run.kept_keys import KeysError, RunKeys, load_or_make_keys, state_dir


@dataclass(frozen=True)
class Team:
    name: str
    key_hashes: tuple[str, ...]
    key: tuple[TenantKeySettings, ...] = ()


def team(name: str, *keys: str) -> Team:
    return Team(name, tuple(hash_key(key) for key in keys))


def holder_of(ring: KeyRing[Team], key: bytes) -> Team | None:
    known = ring.find(key)
    return known.holder if known is not None else None


def test_a_key_has_its_name_and_its_end() -> None:
    named = TenantKeySettings(name="ci", hash=hash_key("key-2"), expires=datetime.date(2027, 1, 1))
    ring = KeyRing([Team("a", (hash_key("key-1"),), (named,))])
    plain, ci = ring.find(b"key-1"), ring.find(b"key-2")
    assert plain is not None
    assert ci is not None
    assert (plain.name, ci.name) == (f"sha256:{hash_key('key-1')[:8]}", "ci")
    last, first = datetime.date(2026, 12, 31), datetime.date(2027, 1, 1)
    assert [ci.expired(day) for day in (last, first)] == [False, True]
    assert [ring.holds(ci.digest, day) for day in (last, first)] == [True, False]
    assert ring.holds(plain.digest, datetime.date.max)
    assert not ring.holds(b"another", last)
    assert "key-1" not in repr(plain)


def test_a_key_begins_with_sg_and_fits_into_a_header() -> None:
    key = new_key()
    assert key.startswith("sg-")
    assert len(key) >= 35
    assert key.isascii()
    assert key.replace("-", "").replace("_", "").isalnum()


def test_no_two_keys_are_the_same() -> None:
    assert len({new_key() for _ in range(1000)}) == 1000


def test_a_hash_is_the_sha256_of_the_key_s_bytes() -> None:
    assert hash_key("sg-é") == hash_key("sg-é".encode()) == hashlib.sha256("sg-é".encode()).hexdigest()
    assert len(hash_key("\udc80")) == 64


def test_a_key_opens_for_its_tenant_only() -> None:
    a, b = team("a", "key-1", "key-2"), team("b", "key-3")
    ring = KeyRing([a, b])
    assert [holder_of(ring, key) for key in (b"key-1", b"key-2", b"key-3")] == [a, a, b]


@pytest.mark.parametrize(
    "presented", [b"", b"key-10", b"KEY-1", b" key-1", b"key-1\0", b"\xff\xfe", b"x" * 10**6]
)
def test_anything_else_opens_for_nobody(presented: bytes) -> None:
    ring = KeyRing([team("a", "key-1")], [hash_key("operator")])
    assert ring.find(presented) is None
    assert not ring.holds_operator(sha256(presented).digest())


@given(st.binary())
def test_whatever_bytes_are_presented_nothing_is_raised(presented: bytes) -> None:
    assert KeyRing([team("a", "a key that is not drawn")]).find(presented) is None


def test_a_hash_is_no_key() -> None:
    assert KeyRing([team("a", "key-1")]).find(hash_key("key-1").encode()) is None


def test_the_operator_s_key_and_a_tenant_s_key_are_different_things() -> None:
    ring = KeyRing([team("a", "key-1")], [hash_key("operator")])
    assert ring.holds_operator(sha256(b"operator").digest())
    assert not ring.holds_operator(sha256(b"key-1").digest())
    assert ring.find(b"operator") is None
    assert ring.has_operator
    assert not KeyRing([team("a", "key-1")]).has_operator


def test_ten_thousand_keys_cost_nothing() -> None:
    """A look-up takes about a microsecond; the bound is far off, and on CPU time, for a busy machine."""
    ring = KeyRing([Team(f"t{n}", (hash_key(f"key-{n}"),)) for n in range(10_000)])
    started = time.process_time()
    for n in range(0, 10_000, 10):
        assert ring.find(f"key-{n}".encode()) is not None
    assert time.process_time() - started < 0.1


def test_a_ring_shows_no_key() -> None:
    ring = KeyRing([team("a", "key-1", "key-2")], [hash_key("operator")])
    assert repr(ring) == "<KeyRing 2 tenant keys, 1 operator keys>"


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


def test_files_that_others_may_read_are_closed_again(tmp_path: Path) -> None:
    directory = tmp_path / "slotgate"
    load_or_make_keys(directory)
    [file] = directory.iterdir()
    directory.chmod(0o755)
    file.chmod(0o644)
    load_or_make_keys(directory)
    assert (directory.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_who_starts_at_the_same_time_gets_the_same_keys(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeysError, match=r"cannot keep keys in .*: Not a directory"):
        load_or_make_keys(tmp_path / "file" / "slotgate")


def test_run_keys_do_not_print() -> None:
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
def test_state_is_kept_where_the_xdg_directories_say(environ: dict[str, str], directory: str) -> None:
    assert state_dir(environ) == Path(directory)
