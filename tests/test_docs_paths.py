"""Every module and folder that the documentation names exists. README.md names the paths of all endpoints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotgate.gateway.api.endpoints import ENDPOINTS
from tests.support.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FOLDERS = (ROOT, ROOT / "gateway")
"""Paths in the documentation start at one of these."""
MADE_LATER = {"bench/results/", "bench/.work", "cassette/"}
"""Folders that a command creates."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_path_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.py)?)`", text)) - MADE_LATER
    assert [path for path in sorted(named) if not any((folder / path).exists() for folder in FOLDERS)] == []


@pytest.mark.parametrize("path", [path for endpoint in ENDPOINTS for path in endpoint.paths])
def test_readme_lists_every_path_of_the_endpoints(path: str) -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert any(f"`{path}`" in row for row in rows), "add it to the table in README.md"
