"""An audit that could look up nothing does not look like a clean one."""

from __future__ import annotations

import orjson
import pytest

from tests.support.advisories import read

CLEAN = {"name": "anyio", "version": "4.16.0", "vulns": []}
SKIPPED = {"name": "click", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {"name": "httpx", "version": "0.1", "vulns": [{"id": "PYSEC-1"}, {"id": "GHSA-2"}]}


def said(*packages: object) -> str:
    return str(read(orjson.dumps({"dependencies": packages, "fixes": []})))


def test_a_clean_report_says_how_many_packages_were_looked_up() -> None:
    assert said(CLEAN, SKIPPED) == "1 packages were looked up, 1 were skipped\nno known vulnerability"


def test_a_vulnerable_package_is_named_with_its_advisories() -> None:
    assert "httpx 0.1: PYSEC-1, GHSA-2" in said(CLEAN, VULNERABLE)
    assert read(orjson.dumps({"dependencies": [VULNERABLE]})).vulnerable


def test_a_report_that_skipped_everything_is_no_clean_report() -> None:
    assert said(SKIPPED).startswith("NOTHING WAS AUDITED")


@pytest.mark.parametrize("text", [b"", b"Traceback", b"[]", b"{}"])
def test_a_failed_audit_is_no_clean_report(text: bytes) -> None:
    assert str(read(text)).startswith("NOTHING WAS AUDITED")
