"""docs/failures.md and the names of tests use the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_number_in_a_tests_name_is_explained_and_every_explanation_has_a_test() -> None:
    sources = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = set(re.findall(r"def test_scenario_(\d{3})_", sources))
    explained = set(
        re.findall(r"^\| (\d{3}) \|", (TESTS.parent / "docs/failures.md").read_text(), re.MULTILINE)
    )
    assert named == explained
