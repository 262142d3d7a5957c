"""A test that is not marked `slow` takes a quarter of a second at most.

The limit that fails a test is eight times as long, so that a busy machine does not fail it. The time in which
the test was ready to run and other processes had the CPU is left out: Linux counts it for every thread. It
does not tell how long the processes had to wait that a test has started, so the limit also grows with the
load of the machine. Tests that take between the two are listed at the end of the run, as a hint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["FAILS_S", "FAST_S", "LISTED_S", "pytest_runtest_call", "pytest_terminal_summary"]

FAST_S = 0.25
LISTED_S = 2 * FAST_S
FAILS_S = 8 * FAST_S
PROPERTY = "seconds of a test that is not marked slow"
_SCHEDULING = Path("/proc/thread-self/schedstat")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passes but takes too long. Fixtures do not count: some are shared by many tests."""
    began, waited = time.perf_counter(), seconds_without_cpu()
    result = yield
    took = time.perf_counter() - began - (seconds_without_cpu() - waited)
    if item.get_closest_marker("slow") is None:
        item.user_properties.append((PROPERTY, took))
        if took > FAILS_S * max(1.0, load_per_cpu()):
            pytest.fail(
                f"takes {took:.1f} s: make it faster (at most {FAST_S} s) or mark it slow", pytrace=False
            )
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that came near the limit, the longest first."""
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


def load_per_cpu() -> float:
    """The mean number of processes that want a CPU, of the last minute, for each CPU that there is."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def seconds_without_cpu() -> float:
    """The time for which this thread has waited for a CPU; 0 where the system does not count it."""
    try:
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
