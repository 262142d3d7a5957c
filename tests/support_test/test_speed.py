"""A test that takes too long fails unless it is marked slow."""

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


def test_unmarked_test_over_the_limit_fails(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.support import speed\n"
        "from tests.support.speed import pytest_runtest_call, pytest_terminal_summary\n\n"
        "speed.LISTED_S, speed.FAILS_S = 0.05, 0.2\n"
        "speed.load_per_cpu = lambda: 1.0\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "FAILED test_example.py::test_unmarked - Failed: takes 0.3 s" in done.stdout
    assert "0.1 s  test_example.py::test_near_the_limit" in done.stdout
