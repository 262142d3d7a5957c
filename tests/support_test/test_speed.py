"""A test that takes long is listed unless it is marked slow, and a quiet test runs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLE = """
import time

import pytest


def test_quick():
    pass


def test_unmarked():
    time.sleep(0.3)


@pytest.mark.slow
def test_marked():
    time.sleep(0.3)


def test_near_the_limit():
    time.sleep(0.1)
"""


def test_unmarked_tests_over_the_limit_are_listed(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.support import speed\n"
        "from tests.support.speed import pytest_runtest_call, pytest_terminal_summary\n\n"
        "speed.LISTED_S = 0.05\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout
    assert "0.3 s  test_example.py::test_unmarked" in done.stdout
    assert "test_marked" not in done.stdout
    assert "0.1 s  test_example.py::test_near_the_limit" in done.stdout


QUIET = """
import time
from pathlib import Path

import pytest


def overlaps(name):
    running = Path("running")
    running.mkdir(exist_ok=True)
    mine = running / name
    mine.touch()
    time.sleep(0.05)
    others = [path.name for path in running.iterdir() if path != mine]
    mine.unlink()
    return others


@pytest.mark.parametrize("number", range(12))
def test_other(number):
    assert "quiet" not in overlaps(f"other{number}")


@pytest.mark.quiet
@pytest.mark.parametrize("number", range(3))
def test_quiet(number):
    assert overlaps("quiet") == []
"""


@pytest.mark.parametrize("workers", [2, 4])
def test_quiet_test_runs_alone(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_example.py").write_text(QUIET)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = quiet\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.support.quiet import QuietTests\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(QuietTests())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", f"{workers}", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "15 passed" in done.stdout, done.stdout
