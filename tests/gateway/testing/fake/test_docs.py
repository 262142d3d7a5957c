"""The pages about tests and cassettes match the code, and their Python examples run."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slotgate.gateway.testing.cassette.cassette import CassetteFolder
from slotgate.gateway.testing.cassette.exchange import Ending, RecordedExchange, RecordedResponse
from slotgate.gateway.testing.cassette.request import RecordedRequest
from slotgate.gateway.testing.fake import scene_of
from slotgate.gateway.testing.fake.script.scene import FaultKind, Machine, Pace, Reply, When
from slotgate.gateway.testing.fake_program import built_in
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text()
CASSETTES = (ROOT / "docs" / "cassettes.md").read_text()
_python_blocks = re.compile(r"```python\n(.*?)```", re.DOTALL).findall


def test_the_table_of_faults_is_complete() -> None:
    table = PAGE.partition("| fault |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.split("\n")[2:]]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(cells))) == sorted(kind.value for kind in FaultKind)


def test_the_script_of_the_page_is_valid_and_names_every_member() -> None:
    section = PAGE.partition("### Scripts")[2].partition("A request can also")[0]
    script = "\n".join(line.removeprefix("    ") for line in section.split("\n") if line.startswith("    "))
    scene_of(tomllib.loads(script))
    names = {field.name for kind in (Machine, Reply, When, Pace) for field in dataclasses.fields(kind)}
    unnamed = {name for name in names - {"when", "pace", "calls"} if not re.search(rf"\b{name}\b", section)}
    assert unnamed == set()


def test_the_page_lists_the_models_of_the_built_in_script() -> None:
    section = PAGE.partition("Without `--script`")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`([^`]+)`", section)) == built_in().models


@pytest.mark.parametrize("name", ["docs/examples/chat-tests/model.toml"])
def test_the_scripts_of_the_examples_are_valid(name: str) -> None:
    scene_of(tomllib.loads((ROOT / name).read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("page", [PAGE, CASSETTES], ids=["testing", "cassettes"])
def test_the_python_example_of_the_page_runs(page: str, tmp_path: Path) -> None:
    folder = CassetteFolder(tmp_path / "cassette")
    request = RecordedRequest("GET", "/health")
    response = RecordedResponse(200, 0.0, (), (), Ending.COMPLETE, 0.0, closes=False)
    folder.keep(folder.new_file(request), RecordedExchange(request, response))
    [example] = _python_blocks(page)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("page", [PAGE, CASSETTES], ids=["testing", "cassettes"])
def test_the_examples_of_the_page_import_public_names_only(page: str) -> None:
    modules = re.findall(r"(?:from|import) (slotgate\S*)", page)
    assert modules
    assert set(modules) == {"slotgate.testing"}
