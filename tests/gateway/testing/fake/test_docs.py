"""The page about tests says what the code does."""

import dataclasses
import re
import tomllib

import pytest

from slotgate.gateway.testing.fake import scene_of
from slotgate.gateway.testing.fake.script.scene import FaultKind, Machine, Pace, Reply, When
from slotgate.gateway.testing.fake_program import built_in
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text()


def test_every_fault_is_in_the_table_and_nothing_else() -> None:
    table = PAGE.partition("| fault |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.split("\n")[2:]]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(cells))) == sorted(kind.value for kind in FaultKind)


def test_the_script_of_the_page_can_be_played_and_names_every_member() -> None:
    section = PAGE.partition("### Scripts")[2].partition("A script need not")[0]
    script = "\n".join(line.removeprefix("    ") for line in section.split("\n") if line.startswith("    "))
    scene_of(tomllib.loads(script))
    names = {field.name for kind in (Machine, Reply, When, Pace) for field in dataclasses.fields(kind)}
    unnamed = {name for name in names - {"when", "pace", "calls"} if not re.search(rf"\b{name}\b", section)}
    assert unnamed == set()


def test_the_models_to_try_are_those_of_the_built_in_script() -> None:
    section = PAGE.partition("Without `--script`")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`([^`]+)`", section)) == built_in().models


@pytest.mark.parametrize("name", ["docs/examples/chat-tests/model.toml"])
def test_scripts_that_ship_can_be_played(name: str) -> None:
    scene_of(tomllib.loads((ROOT / name).read_text()))
