"""A test that is marked `quiet` runs while no other worker of pytest-xdist runs a test.

It measures times, and on a machine with as many workers as cores it would measure the other tests. Each test
holds a shared lock on a file of the run, and a quiet test an exclusive one. Both pass a gate first: otherwise
the other workers would hand the shared lock to each other, and a quiet test would wait until the end.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["pytest_runtest_protocol"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    folder = Path(tempfile.gettempdir())
    quiet = item.get_closest_marker("quiet") is not None
    with _locked(folder / f"slotgate-tests-{run}", exclusive=quiet):
        return (yield)


@contextmanager
def _locked(file: Path, *, exclusive: bool) -> Iterator[None]:
    with open(file.with_suffix(".gate"), "w") as gate, open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
