"""The command of the example workflow passes, in a real browser."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import DOCS

pytestmark = pytest.mark.slow

EXAMPLE = DOCS / "examples" / "chat-tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def command_of_the_workflow() -> str:
    [command] = re.findall(r"- run: (slotgate ci --script .*)", (EXAMPLE / "workflow.yml").read_text())
    return str(command)


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium (Debian: chromium)")
@pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed")
def test_the_browser_test_of_the_workflow_passes(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "example")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command_of_the_workflow()],
        cwd=folder,
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 requests, 0 failed unexpectedly" in done.stderr
    assert (folder / "requests.xml").exists()
