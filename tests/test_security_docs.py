"""Every promise in docs/security.md names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import DOCS, ROOT

PAGE = (DOCS / "security.md").read_text()
PROMISES = [
    line
    for table in re.findall(r"^\| promise \| test \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    for line in table.splitlines()
]


def test_there_is_a_table_of_promises_for_everybody_who_reaches_the_gateway() -> None:
    assert PAGE.count("| promise | test |") == 6
    assert len(PROMISES) > 40


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line[2:60])
def test_a_promise_is_held_by_tests_that_exist(promise: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", promise)
    assert named, "a promise names a test"
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_the_page_is_linked_from_the_readme_and_from_the_setting() -> None:
    assert "(docs/security.md)" in (ROOT / "README.md").read_text()
    assert "(security.md#urls-that-a-backend-would-fetch)" in (DOCS / "configuration.md").read_text()
    assert "## URLs that a backend would fetch" in PAGE
