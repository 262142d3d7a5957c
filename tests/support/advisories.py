"""Read pip-audit's report of a lock file: `pip-audit --format json ... | python -m tests.support.advisories`.

Without its database pip-audit skips every package and reports no vulnerability, which looks like a success.
This program tells the two apart: it exits with 1 for a known vulnerability, and says how many packages were
looked up.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import orjson

__all__ = ["Report", "read"]


@dataclass(frozen=True, slots=True)
class Report:
    looked_up: int
    skipped: int
    vulnerable: tuple[str, ...]
    """`package version: advisories`."""

    def __str__(self) -> str:
        if not self.looked_up:
            return (
                f"NOTHING WAS AUDITED: the database of advisories cannot be reached from here "
                f"({self.skipped} packages were skipped)"
            )
        lines = [f"{self.looked_up} packages were looked up, {self.skipped} were skipped"]
        return "\n".join([*lines, *(self.vulnerable or ["no known vulnerability"])])


def read(text: bytes) -> Report:
    """Read pip-audit's JSON. An empty report means that pip-audit failed, and nothing was looked up."""
    try:
        packages = orjson.loads(text)["dependencies"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        packages = []
    known = [package for package in packages if "vulns" in package]
    return Report(
        looked_up=len(known),
        skipped=len(packages) - len(known),
        vulnerable=tuple(
            f"{package['name']} {package['version']}: {', '.join(found['id'] for found in package['vulns'])}"
            for package in known
            if package["vulns"]
        ),
    )


if __name__ == "__main__":
    report = read(sys.stdin.buffer.read())
    print(report)
    sys.exit(bool(report.vulnerable))
