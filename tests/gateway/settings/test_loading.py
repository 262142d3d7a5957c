"""Loading a file: unreadable files and broken TOML are faults, and only SettingsError is ever raised."""

from __future__ import annotations

import datetime
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotgate.gateway.settings import Settings, SettingsError, load
from slotgate.gateway.settings.schema import keys, spot
from tests.support.configurations import faults_of

MINIMAL = '[[backend]]\nname = "gpu0"\nurl = "http://127.0.0.1:8081"\n'


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "slotgate.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def faults_in_file(path: Path) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    return [(fault.place, fault.message) for fault in caught.value.faults]


def test_a_file_becomes_settings(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, MINIMAL), {})
    assert [backend.url for backend in loaded.backends] == ["http://127.0.0.1:8081"]
    assert loaded.server.port == 8080


@pytest.mark.parametrize("text", ["\ufeff" + MINIMAL, MINIMAL.replace("\n", "\r\n")])
def test_a_file_from_a_windows_editor_is_read_too(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, text), {}).backends


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("[server]\nport = \n", ", line 2, column 8", "is not TOML: Invalid value"),
        ("[server", ", end of the file", "is not TOML: "),
        ("a = 1\na = 2", ", end of the file", "is not TOML: Cannot overwrite a value"),
        ("a = " + "9" * 5000, "", "has a number that is too long"),
        ("a = " + "[" * 100_000, "", "is nested too deeply"),
        (b"a = '\xff'", "", "is not UTF-8 text at byte 5"),
    ],
)
def test_broken_toml_is_reported_with_its_position(
    tmp_path: Path, text: str | bytes, where: str, message: str
) -> None:
    path = written(tmp_path, text)
    [(place, found)] = faults_in_file(path)
    assert place.startswith(f"{path}{where}")
    assert found.startswith(message)


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert faults_in_file(path) == [(f"{path}", "cannot be read: No such file or directory")]
    assert faults_in_file(tmp_path) == [(f"{tmp_path}", "cannot be read: Is a directory")]


def test_a_fault_in_a_repeated_table_names_the_table(tmp_path: Path) -> None:
    text = MINIMAL + '[[tenant]]\nname = "team-a"\nkey_hashes = []\nweight = 0\n'
    [(place, _)] = faults_in_file(written(tmp_path, text))
    assert place == 'tenant "team-a".weight'


LIKELY = ["*", "http://a", "unix:/a", "comment", "batch", "a" * 64, "gpu0", "0.0.0.0", "", "true", "[1]"]
texts = st.one_of(st.text(max_size=8), st.sampled_from(LIKELY))
scalars = st.one_of(
    texts,
    st.integers(),
    st.sampled_from([0, 1, -1, 10**400]),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC])),
    st.times(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def tables(top: str) -> st.SearchStrategy[object]:
    """Values for one top-level key; most of them are nearly right."""
    found = spot((top,))
    assert found is not None
    assert found.table is not None
    names = st.one_of(st.sampled_from(sorted(keys(found.table))), texts)
    table = st.dictionaries(names, values, max_size=5)
    repeated = st.lists(st.one_of(table, table, values), max_size=3)
    return st.one_of(repeated if found.is_list else table, values)


documents = st.one_of(
    st.fixed_dictionaries({}, optional={top: tables(top) for top in keys(Settings)}),
    st.dictionaries(texts, values, max_size=4),
)
variables = st.builds(
    "SLOTGATE_{}__{}".format,
    st.sampled_from([*(top.upper() for top in keys(Settings)), "X", ""]),
    st.one_of(
        st.text(string.ascii_uppercase + "_", max_size=12),
        st.sampled_from(["PORT", "GPU0__URL", "GPU0__NAME", "KEY_HASHES"]),
    ),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(documents, st.dictionaries(variables, texts, max_size=3))
def test_any_document_raises_only_settings_errors(data: dict[str, object], environ: dict[str, str]) -> None:
    for fault in faults_of(data, environ):
        assert len(fault.splitlines()) == 1


contents = st.one_of(
    st.binary(max_size=50), st.text(st.sampled_from('[]{}="a1.\n#'), max_size=30).map(str.encode)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents)
def test_any_file_content_raises_only_settings_errors(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SettingsError):
        load(written(tmp_path, content), {})
