"""The sources of the operator key, and the gateways that get the key of `slotgate run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotgate.gateway.tools.client_key import OPERATOR, NoKeyError, with_scheme
from slotgate.gateway.tools.run.kept_keys import load_or_make_keys

HERE, ELSEWHERE = "http://127.0.0.1:8080", "https://gpu.example.org"


def test_the_file_comes_before_the_variable_and_the_variable_before_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" sg-file\n")
    environ = {"SLOTGATE_OPERATOR_KEY": "sg-variable", "XDG_STATE_HOME": str(tmp_path)}
    assert OPERATOR.find(HERE, path, environ, lambda: "sg-typed") == "sg-file"
    assert OPERATOR.find(HERE, None, environ, lambda: "sg-typed") == "sg-variable"
    assert OPERATOR.find(HERE, None, {"XDG_STATE_HOME": str(tmp_path)}, lambda: "sg-typed") == "sg-typed"


def test_the_key_of_slotgate_run_is_used_for_this_machine_only(tmp_path: Path) -> None:
    keys = load_or_make_keys(tmp_path / "slotgate")
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert OPERATOR.find(HERE, None, environ, None) == keys.operator
    for url in (ELSEWHERE, "http://127.0.0.1.example.org", "http://localhost@example.org"):
        with pytest.raises(NoKeyError):
            OPERATOR.find(url, None, environ, None)


def test_a_url_without_a_scheme_gets_http(tmp_path: Path) -> None:
    keys = load_or_make_keys(tmp_path / "slotgate")
    url = with_scheme("127.0.0.1:8080")
    assert (url, with_scheme(ELSEWHERE)) == (HERE, ELSEWHERE)
    assert OPERATOR.find(url, None, {"XDG_STATE_HOME": str(tmp_path)}, None) == keys.operator


def test_looking_for_keys_makes_none(tmp_path: Path) -> None:
    with pytest.raises(NoKeyError, match="SLOTGATE_OPERATOR_KEY"):
        OPERATOR.find(HERE, None, {"XDG_STATE_HOME": str(tmp_path)}, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", " \n", "two words", "k\x00y", "schlüssel"])
def test_an_invalid_key_is_refused_without_showing_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(NoKeyError) as caught:
        OPERATOR.find(HERE, path, {}, None)
    assert str(caught.value) == f"the file {path} holds no key"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoKeyError, match="cannot be read"):
        OPERATOR.find(HERE, tmp_path, {}, None)
