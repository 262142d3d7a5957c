"""A test that is not marked `slow` takes a quarter of a second at most, on an idle machine.

Tests that took longer are listed at the end of the run. They do not fail: how long a test takes depends on
the machine. The time in which the test was ready to run while other processes had the CPU is left out; Linux
counts it for every thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["FAST_S", "LISTED_S", "pytest_runtest_call", "pytest_terminal_summary"]

FAST_S = 0.25
LISTED_S = 2 * FAST_S
PROPERTY = "seconds of a test that is not marked slow"
_SCHEDULING = Path("/proc/thread-self/schedstat")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note how long the test took. Fixtures do not count: some are shared by many tests."""
    began, waited = time.perf_counter(), seconds_without_cpu()
    result = yield
    took = time.perf_counter() - began - (seconds_without_cpu() - waited)
    if item.get_closest_marker("slow") is None:
        item.user_properties.append((PROPERTY, took))
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that took too long, the longest first: make them faster, or mark them."""
    found = {
        report.nodeid: value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == PROPERTY and isinstance(value, float) and value > LISTED_S
    }
    if found:
        terminalreporter.section(f"not marked slow, and longer than {LISTED_S:g} s")
        for nodeid, took in sorted(found.items(), key=lambda item: -item[1]):
            terminalreporter.line(f"{took:.1f} s  {nodeid}")


def seconds_without_cpu() -> float:
    """The time for which this thread has waited for a CPU; 0 where the system does not count it."""
    try:
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
