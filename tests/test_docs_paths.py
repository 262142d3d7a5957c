"""Every module and folder that the documentation names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FOLDERS = (ROOT, ROOT / "gateway")
"""Paths in the documentation start at one of these."""
MADE_LATER = {"bench/results/", "bench/.work", "cassette/"}
"""Folders that a command creates."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_path_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.py)?)`", text)) - MADE_LATER
    assert [path for path in sorted(named) if not any((folder / path).exists() for folder in FOLDERS)] == []
